"""Metadata of the stateful operators in a plain query's checkpoint. It parses text: it needs neither Spark nor Java.

`state/<operator>/_metadata` describes an operator as JSON: in the file `metadata`, or in the newest file of the folder
`v2`, after a line with the version. Spark 4 writes it at each start of a query; Spark 3.5 did not.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_ckpt.spark_internals.names import SparkName
from spark_ckpt.spark_internals.query_logs import UnknownFormat, Unreadable

_FOLDER = "sql/core/src/main/scala/org/apache/spark/sql/execution/streaming"
_PACKAGE = "org.apache.spark.sql.execution.streaming"
_NOT_ADOPTED = "a plain query with state cannot become a job"
NAMES = (
    SparkName(
        "operatorInfo", f"{_PACKAGE}.state.OperatorStateMetadataV1 ({_FOLDER}/state/OperatorStateMetadata.scala)",
        "parse_operator", _NOT_ADOPTED,
    ),
    SparkName(
        "FLAT_MAP_GROUPS_IN_PANDAS_WITH_STATE_EXEC_OP_NAME",
        f"{_PACKAGE}.operators.stateful.StatefulOperatorsUtils ({_FOLDER}/operators/stateful/statefulOperators.scala)",
        "parse_operator, PANDAS", _NOT_ADOPTED,
    ),
)  # fmt: skip

OPERATOR_METADATA, METADATA_V1, METADATA_V2 = "_metadata", "metadata", "v2"
"""Folder of an operator, the file in it, and the folder in it that newer operators have."""

PANDAS = "applyInPandasWithState"
WORDS = {
    "stateStoreSave": "an aggregation",
    "sessionWindowStateStoreSaveExec": "an aggregation over session windows",
    "symmetricHashJoin": "a join of two streams",
    "dedupe": "dropDuplicates",
    "dedupeWithinWatermark": "dropDuplicatesWithinWatermark",
    "globalLimit": "a limit",
    "flatMapGroupsWithState": "mapGroupsWithState of Scala or Java",
    "transformWithStateExec": "transformWithState of Scala or Java",
    "transformWithStateInPandasExec": "transformWithStateInPandas",
    "transformWithStateInPySparkExec": "transformWithState",
}
"""Spark's names of other operators, with the terms that users know."""

_VERSIONS = ("v1", "v2")
_SCHEMAS = re.compile(r'"[^"\s]*/state/(\d+/_stateSchema/[^"\s]*)"')
"""Absolute path of a schema, in JSON inside of JSON or not."""


@dataclass(frozen=True, slots=True)
class OperatorMetadata:
    """An operator.

    `name` is Spark's name, see `PANDAS` and `WORDS`; `partitions` is the number of its state partitions.
    """

    name: str
    partitions: int


def operators_in(state: Path) -> tuple[str, ...]:
    """Return Spark's names of the operators in the folder `state` of a checkpoint, in the order of their numbers.

    Raises `UnknownFormat`, `Unreadable`, and OSError.
    """
    numbers = sorted(int(each.name) for each in state.iterdir() if each.name.isdecimal())
    files = [_newest(state / str(number) / OPERATOR_METADATA) for number in numbers]
    return tuple(parse_operator(file.read_text()).name for file in files if file is not None)


def place_schemas(state: Path, place: Path) -> None:
    """Let the metadata in a copied folder `state` name the schemas in `place`, the folder's name once it is complete.

    `transformWithState` names its schemas by absolute paths, which would lead into the checkpoint that was copied.
    """
    for folder in state.glob(f"*/{OPERATOR_METADATA}/{METADATA_V2}"):
        for path in folder.iterdir():
            text = path.read_text()
            placed = _SCHEMAS.sub(lambda found: f'"{place.as_uri()}/{found[1]}"', text)
            # Most operators name no paths, and their files stay links to the store.
            if placed != text:
                path.unlink()  # a link: the other name keeps its content
                path.write_text(placed)


def _newest(folder: Path) -> Path | None:
    numbered = {int(each.name.partition("_")[0]): each for each in _batches(folder / METADATA_V2)}
    if numbered:
        # Spark writes one at each start of the query; the newest describes the operator that runs.
        return numbered[max(numbered)]
    return folder / METADATA_V1 if (folder / METADATA_V1).exists() else None


def _batches(folder: Path) -> list[Path]:
    # Hadoop's checksums are hidden files.
    return [each for each in folder.iterdir() if each.name[0].isdecimal()] if folder.is_dir() else []


def parse_operator(text: str) -> OperatorMetadata:
    """Parse a file of an operator's metadata. Raises `UnknownFormat`, `Unreadable`."""
    version, _, body = text.partition("\n")
    if version.strip() not in _VERSIONS:
        raise UnknownFormat(version.strip(), _VERSIONS)
    try:
        found: Any = json.loads(body)
        name, stores = found["operatorInfo"]["operatorName"], found["stateStoreInfo"]
        partitions = max(each["numPartitions"] for each in stores)
    except (ValueError, TypeError, KeyError) as error:
        raise Unreadable("it does not say what the operator is") from error
    # The number by its exact type: a bool is an int, too.
    if not isinstance(name, str) or type(partitions) is not int or partitions < 1:
        raise Unreadable("it does not say what the operator is")
    return OperatorMetadata(name, partitions)
