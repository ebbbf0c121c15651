"""A MERGE beside other writers: what Delta refuses, how long to go on, and how to be in nobody's way.

Delta's open-source isolation is serializable: a MERGE fails if anybody added rows to what it read since it began, also
by a plain append. Without partitions it read the whole table, so that a writer that commits more often than a MERGE takes starves
it. Two things help: to pause longer after every conflict, and to say which partitions the rows are in, so that only
writers of the same ones conflict.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.functions import unix_micros, when

from spark_ckpt.spark_internals.column_names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column

_CONFLICT = re.compile(r"DELTA_CONCURRENT_[A-Z_]+|DELTA_METADATA_CHANGED|Concurrent[A-Za-z]+Exception")
_RULE = re.compile(r"(DELTA_(?:VIOLATE_CONSTRAINT|NOT_NULL_CONSTRAINT|EXCEED_CHAR_VARCHAR)[A-Z_]*)\]?([^\n]*)")
_TIMESTAMP = "timestamp"
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
MOST_PARTITIONS = 200
"""Beyond so many, naming the partitions costs more than it saves."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How often a statement is tried beside other writers; pauses between attempts double, with jitter."""

    attempts: int = 6
    first_pause_s: float = 0.5
    longest_pause_s: float = 16.0
    sleep: Callable[[float], None] = time.sleep

    def pause(self, failures: int) -> None:
        """Wait after so many conflicts in a row."""
        pause_s = min(self.first_pause_s * 2 ** (failures - 1), self.longest_pause_s)
        # Jitter: a writer with a fixed interval would meet every attempt at the same point.
        self.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - not a secret


def conflict(error: Exception) -> str:
    """Delta's name of the conflict with another writer that `error` is; empty if it is something else."""
    found = _CONFLICT.search(str(error))
    return found[0] if found else ""


def broken_rule(error: Exception) -> str:
    """The table's rule (a constraint, NOT NULL) that rows violate, as Delta says it; empty if `error` is something else."""
    found = _RULE.search(str(error))  # the values of the row are on the lines after it
    return f"{found[1]}:{found[2]}" if found else ""


def upsert(columns: Sequence[str]) -> str:
    """A MERGE's clauses: matched rows get the staged values, others are inserted.

    Columns are named. With `*` Delta takes the table's columns, and ignores a staged one that the table has lost.
    """
    names = [quoted(name) for name in columns]
    values = ", ".join(f"staged.{name}" for name in names)
    sets = ", ".join(f"target.{name} = staged.{name}" for name in names)
    inserts = f"({', '.join(names)}) VALUES ({values})"
    return f"WHEN MATCHED THEN UPDATE SET {sets} WHEN NOT MATCHED THEN INSERT {inserts}"


def condition(keys: Sequence[str], partitions: Mapping[str, Sequence[str | None]], types: Mapping[str, str]) -> str:
    """A MERGE's condition: equal keys, and the partitions that the staged rows are in, as far as keys name them.

    `partitions`: per partition column that is a key, its values as `value_text` gives them; `types`: their SQL types.
    """
    equal = [f"target.{quoted(key)} <=> staged.{quoted(key)}" for key in keys]
    within = [_within(name, values, types[name]) for name, values in partitions.items()]
    return " AND ".join([*within, *equal])


def _within(name: str, values: Sequence[str | None], sql_type: str) -> str:
    column = f"target.{quoted(name)}"
    literals = ", ".join(_literal(value, sql_type) for value in values if value is not None)
    either = [f"{column} IN ({literals})"] if literals else []
    either += [f"{column} IS NULL"] if None in values else []
    return f"({' OR '.join(either)})" if either else "false"


def _literal(text: str, sql_type: str) -> str:
    """In hexadecimal: a session setting says what a backslash in a quoted text means."""
    value = f"CAST(X'{text.encode().hex()}' AS STRING)"
    if sql_type == _TIMESTAMP:
        return f"timestamp_micros(CAST({value} AS BIGINT))"
    return f"CAST({value} AS {sql_type})"


def value_text(column: Column, sql_type: str) -> Column:
    """A partition value as text that stands for one value only: local time names two instants when clocks go back."""
    return (unix_micros(column) if sql_type == _TIMESTAMP else column).cast("string")


def as_stored(column: Column, sql_type: str) -> Column:
    """A partition value as Delta gives it back: it has no empty text, and one name for null."""
    if sql_type != "string":
        return column
    return when(~column.isin("", NULL_PARTITION), column)
