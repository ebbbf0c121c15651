"""MERGE: the row that wins, the conflicts with concurrent writers that Delta reports, and how to avoid them.

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

from pyspark.errors import AnalysisException
from pyspark.sql.functions import coalesce, expr, lit, unix_micros, when

from spark_ckpt.errors import SinkInvalid
from spark_ckpt.spark_internals.column_names import column_of, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_CONFLICT = re.compile(r"DELTA_CONCURRENT_[A-Z_]+|DELTA_METADATA_CHANGED|Concurrent[A-Za-z]+Exception")
_RULE = re.compile(r"(DELTA_(?:VIOLATE_CONSTRAINT|NOT_NULL_CONSTRAINT|EXCEED_CHAR_VARCHAR)[A-Z_]*)\]?([^\n]*)")
_TIMESTAMP = "timestamp"
DELETES = "__ckpt_deletes"
"""Column of the staged rows: true if the row deletes its key."""
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


@dataclass(frozen=True, slots=True)
class MergeRule:
    """Rule for the row of a key that a merge leaves in the table; see `DeltaSink`. Without `keys` rows are appended."""

    keys: tuple[str, ...] = ()
    newest_by: str | None = None
    delete_when: str | None = None

    def clauses(self, columns: Sequence[str]) -> str:
        """Return the clauses of a MERGE that writes `columns` of the staged rows. Column `DELETES` marks deletions.

        Columns are named. With `*` Delta would take the table's columns, and ignore a staged one that the table has lost.
        """
        names = [quoted(name) for name in columns]
        values = ", ".join(f"staged.{name}" for name in names)
        sets = ", ".join(f"target.{name} = staged.{name}" for name in names)
        inserts = f"({', '.join(names)}) VALUES ({values})"
        matched, missing = f"WHEN MATCHED{self._unless_newer()}", "WHEN NOT MATCHED"
        if self.delete_when is None:
            return f"{matched} THEN UPDATE SET {sets} {missing} THEN INSERT {inserts}"
        return (
            # A MERGE takes the first clause whose condition holds, so that the deletion comes before the update.
            f"{matched} AND staged.{DELETES} THEN DELETE {matched} THEN UPDATE SET {sets} "
            f"{missing} AND NOT staged.{DELETES} THEN INSERT {inserts}"
        )

    def _unless_newer(self) -> str:
        if self.newest_by is None:
            return ""
        column = quoted(self.newest_by)
        # null is older than everything; of equal ones the staged row arrived later
        return f" AND (staged.{column} >= target.{column} OR target.{column} IS NULL)"

    def order(self, arrival: Sequence[Column]) -> list[Column]:
        """Return the order of a key's rows within an epoch, the winner first. `arrival`: the last row first."""
        newest = [] if self.newest_by is None else [column_of(self.newest_by).desc_nulls_last()]
        return [*newest, *arrival]

    def marks(self) -> list[Column]:
        """Return the column `DELETES`, if rows may delete. A null condition is false."""
        return [] if self.delete_when is None else [coalesce(expr(self.delete_when), lit(False)).alias(DELETES)]

    def check(self, table: str, rows: DataFrame) -> None:
        """Raise `SinkInvalid` for a column without an order, and for a condition that does not fit the rows.

        `rows`: no row, with the columns of the sink.
        """
        if self.newest_by is not None:
            column = column_of(self.newest_by)
            _try(
                lambda: rows.select(column >= column),
                f"{table}: newest_by='{self.newest_by}' names a column without an order",
                "name a column of numbers, texts or times",
            )
        if self.delete_when is not None:
            condition = self.delete_when
            _try(
                # a filter takes conditions only, and a column no subquery of rows
                lambda: rows.where(expr(condition)).select("*", *self.marks()),
                f"{table}: delete_when={condition!r} is no condition of a row",
                f"write SQL about the columns {', '.join(rows.columns)}",
            )


def _try(analyse: Callable[[], DataFrame], what: str, hint: str) -> None:
    try:
        if not analyse().schema:
            raise AssertionError("rows of no column")
    except AnalysisException as error:
        said = str(error).split("\n", 1)[0]
        raise SinkInvalid(f"{what}: {said}", hint=hint) from error


def condition(keys: Sequence[str], partitions: Mapping[str, Sequence[str | None]], types: Mapping[str, str]) -> str:
    """Return the condition of a MERGE: equal keys, and the partitions of the staged rows, as far as keys name them.

    `partitions`: values of each partition column that is a key, in the form of `value_text`. `types`: their SQL types.
    """
    # `<=>` matches null with null: `null_keys="match"` merges such rows, "refuse" lets none get here.
    equal = [f"target.{quoted(key)} <=> staged.{quoted(key)}" for key in keys]
    within = [_within(name, values, types[name]) for name, values in partitions.items()]
    return " AND ".join([*within, *equal])


def _within(name: str, values: Sequence[str | None], sql_type: str) -> str:
    column = f"target.{quoted(name)}"
    literals = ", ".join(_literal(value, sql_type) for value in values if value is not None)
    either = [f"{column} IN ({literals})"] if literals else []
    either += [f"{column} IS NULL"] if None in values else []
    # No values, no staged rows: nothing of the table can match.
    return f"({' OR '.join(either)})" if either else "false"


def _literal(text: str, sql_type: str) -> str:
    # In hexadecimal: a setting of the session decides what a backslash in quoted text means.
    value = f"CAST(X'{text.encode().hex()}' AS STRING)"
    # `value_text` has written the instant as microseconds.
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
