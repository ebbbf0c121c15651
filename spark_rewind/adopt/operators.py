"""Stateful operators of a checkpoint: their kinds, and the numbers of partitions of their state. Needs no JVM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_ckpt.errors import AdoptionRefused
from spark_ckpt.spark_internals import operator_metadata
from spark_ckpt.spark_internals.operator_metadata import PANDAS, WORDS, parse_operator
from spark_ckpt.spark_internals.query_logs import STATE, batch_number
from spark_rewind.reading import listed_text, names, numbered_folders, parsing


@dataclass(frozen=True, slots=True)
class StatefulOperator:
    """One operator of a query. `number`: Spark's, from the sink up.

    `partitions`: number of partitions of its state, which are numbered from 0.
    """

    number: int
    name: str
    partitions: int

    def __str__(self) -> str:
        known = WORDS.get(self.name)
        return f"operator {self.number} is {self.name}" + (f" ({known})" if known else "")


def read_operators(checkpoint: Path) -> tuple[StatefulOperator, ...]:
    """Return all stateful operators of a query, by number; none for a query without state.

    Raises `AdoptionRefused` if the checkpoint does not name an operator's kind, `CheckpointDamaged`,
    `CheckpointUnreadable`, `FormatUnknown`.
    """
    folders: Mapping[int, Path] = numbered_folders(checkpoint / STATE)
    return tuple(_operator(number, folder) for number, folder in sorted(folders.items()))


def refuse_others(operators: tuple[StatefulOperator, ...]) -> None:
    """Raise `AdoptionRefused` with each operator that is not `applyInPandasWithState`."""
    others = [each for each in operators if each.name != PANDAS]
    if others:
        raise AdoptionRefused(
            f"the query has state that no operator of a job can take over: {', '.join(map(str, others))}",
            hint=f"only the state of {PANDAS} moves to an operator of a job; a job that has the query's operators inside of "
            "transform takes all of it: --spark-operators; nothing was changed",
        )


def _operator(number: int, folder: Path) -> StatefulOperator:
    path = _metadata_file(folder / operator_metadata.OPERATOR_METADATA)
    if path is None:
        raise AdoptionRefused(
            f"the checkpoint does not say what operator {number} is: it was written by Spark 3",
            looked_in=folder / operator_metadata.OPERATOR_METADATA,
            hint="start the query once with Spark 4, which writes it down, let it finish a batch, and stop it; nothing was changed",
        )
    with parsing(path):
        found = parse_operator(listed_text(path))
    return StatefulOperator(number, found.name, found.partitions)


def _metadata_file(folder: Path) -> Path | None:
    newer = folder / operator_metadata.METADATA_V2
    # Format version 2 has a file for the first batch of each run: the newest one counts.
    numbered = sorted((number, name) for name in names(newer) if (number := batch_number(name)) is not None)
    if numbered:
        return newer / numbered[-1][1]
    return folder / operator_metadata.METADATA_V1 if operator_metadata.METADATA_V1 in names(folder) else None
