"""Plain queries for tests of adopting: checkpoints in Spark's formats, written without Spark."""

from __future__ import annotations

import json
from pathlib import Path

from spark_ckpt.store.store import Store
from spark_rewind.adopt.adopting import Adoption, AdoptTarget, adopt
from spark_rewind.adopt.plan import AdoptRequest
from tests.rewind.rewind_kit import WrittenQuery

JOB = "orders"


def operator(query: WrittenQuery, name: str = "applyInPandasWithState", partitions: int = 1, number: int = 0) -> None:
    """Write the metadata of a stateful operator, as Spark 4 does."""
    folder = query.folder / "state" / str(number) / "_metadata"
    folder.mkdir(parents=True, exist_ok=True)
    metadata = {
        "operatorInfo": {"operatorId": number, "operatorName": name},
        "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": partitions}],
    }
    (folder / "metadata").write_text(f"v1\n{json.dumps(metadata)}")


def clicks(query: WrittenQuery, *ends: int, **how: object) -> WrittenQuery:
    """One batch for each end of partition 0 of a topic; partition 1 ends at 7."""
    for end in ends:
        query.batch({"clicks": {"0": end, "1": 7}}, **how)
    return query


def target(folder: Path) -> AdoptTarget:
    return AdoptTarget(str(folder / "store"), JOB, {}, None)


def adopted(query: WrittenQuery, folder: Path, *sources: str, **request: object) -> Adoption:
    """Adopt a query without state; a request for a session fails."""
    named = AdoptRequest(str(query.folder), sources or ("clicks",), **request)  # type: ignore[arg-type]
    return adopt(named, target(folder), no_session)


def no_session() -> object:
    raise AssertionError("a session was asked for")


def opened(folder: Path) -> Store:
    return Store.open(str(folder / "store"), JOB)
