"""MERGE with concurrent writers: the conflicts that Delta reports, and the conditions and retries that avoid them.

Delta's open-source isolation is serializable. A MERGE fails if another writer added rows to its input since it began,
even by a plain append. Without partitions it reads the whole table, so a writer that commits more often than a MERGE
takes starves it. Two things help:

- longer pauses after each conflict;
- a condition that names the partitions of the rows, so that only writers of these partitions conflict.
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
"""Number of partitions up to which naming them costs less than it saves."""


@dataclass(frozen=True, slots=True)
class MergePatience:
    """Number of attempts of a statement, and the pauses between them, in seconds. Pauses double, with jitter."""

    attempts: int = 6
    first_pause_s: float = 0.5
    longest_pause_s: float = 16.0
    sleep: Callable[[float], None] = time.sleep

    def pause(self, failures: int) -> None:
        """Wait after the given number of conflicts in a row."""
        pause_s = min(self.first_pause_s * 2 ** (failures - 1), self.longest_pause_s)
        # Jitter: a writer with a fixed interval would hit every attempt at the same point.
        self.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - not a secret


def conflict(error: Exception) -> str:
    """Return Delta's name of the conflict with another writer; empty if `error` is another error."""
    found = _CONFLICT.search(str(error))
    return found[0] if found else ""


def broken_rule(error: Exception) -> str:
    """Return the table's rule (a constraint, NOT NULL) that rows violate, in Delta's words; empty for another error."""
    found = _RULE.search(str(error))  # the row's values follow on later lines
    return f"{found[1]}:{found[2]}" if found else ""


def upsert(columns: Sequence[str]) -> str:
    """Return the clauses of a MERGE: matched rows get the staged values, others are inserted.

    Columns are named. With `*` Delta would take the table's columns, and ignore a staged one that the table has lost.
    """
    names = [quoted(name) for name in columns]
    values = ", ".join(f"staged.{name}" for name in names)
    sets = ", ".join(f"target.{name} = staged.{name}" for name in names)
    inserts = f"({', '.join(names)}) VALUES ({values})"
    return f"WHEN MATCHED THEN UPDATE SET {sets} WHEN NOT MATCHED THEN INSERT {inserts}"


def condition(keys: Sequence[str], partitions: Mapping[str, Sequence[str | None]], types: Mapping[str, str]) -> str:
    """Return the condition of a MERGE: equal keys, and the partitions of the staged rows, as far as keys name them.

    `partitions`: values of each partition column that is a key, in the form of `value_text`. `types`: their SQL types.
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
    """Return an SQL literal in hexadecimal: a session setting defines the meaning of a backslash in quoted text."""
    value = f"CAST(X'{text.encode().hex()}' AS STRING)"
    if sql_type == _TIMESTAMP:
        return f"timestamp_micros(CAST({value} AS BIGINT))"
    return f"CAST({value} AS {sql_type})"


def value_text(column: Column, sql_type: str) -> Column:
    """Return a partition value as unambiguous text: local time names two instants when clocks go back."""
    return (unix_micros(column) if sql_type == _TIMESTAMP else column).cast("string")


def as_stored(column: Column, sql_type: str) -> Column:
    """Return a partition value as Delta returns it: empty text and the name of null become null."""
    if sql_type != "string":
        return column
    return when(~column.isin("", NULL_PARTITION), column)
