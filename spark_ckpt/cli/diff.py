"""`spark-ckpt diff`: compare an operator's state at two epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from spark_ckpt.cli.options import AsJson, StorageOptions, StoreUri, pairs
from spark_ckpt.cli.output import datum, print_json, print_line, print_table
from spark_ckpt.cli.sparks_rows import ReaderOptions, refuse_reader_options, sparks_rows_of
from spark_ckpt.cli.state import Keys, Limit, Operator
from spark_ckpt.cli.stores import open_store_with_state
from spark_ckpt.connector import Json
from spark_ckpt.epochs.records import SparkState
from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.json_values import plain
from spark_ckpt.store.state_rows import Keyed, counted_rows, keyed, keyed_to_compare, snapshot_of, sparks_operator
from spark_ckpt.store.store import Store

_StateRow = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Change:
    """One key whose state differs; a side is None if the key has no state there."""

    key: Mapping[str, object]
    before: _StateRow | None
    after: _StateRow | None

    @property
    def kind(self) -> str:
        """One of "added", "removed" or "changed"."""
        if self.before is None:
            return "added"
        return "removed" if self.after is None else "changed"


def diff(
    store: StoreUri,
    operator: Operator,
    before: Annotated[int, typer.Argument(metavar="FROM", help="The earlier epoch's number.")],
    after: Annotated[int, typer.Argument(metavar="TO", help="The later epoch's number.")],
    key: Keys = None,
    limit: Limit = 20,
    option: ReaderOptions = None,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Compare an operator's state at two epochs: keys added, removed, changed.

    For one of Spark's own operators it starts Spark. If a key has several rows, they are added or removed.
    """
    opened = open_store_with_state(store, storage_option)
    wanted = pairs(key, "--key")
    sparks = {each: sparks_operator(opened.log.manifest(each), operator) for each in (before, after)}
    if any(each is not None for each in sparks.values()):
        rows_at = _sparks(opened, operator, sparks, wanted, pairs(option, "--option"))
        old, new = rows_at[before], rows_at[after]
    else:
        refuse_reader_options(option, operator)
        old, new = (keyed_to_compare(opened, operator, *each, wanted) for each in ((before, after), (after, before)))
    changes = changes_between(old, new)
    shown = changes[:limit] if limit else changes
    counts = {kind: sum(each.kind == kind for each in changes) for kind in ("added", "removed", "changed")}
    if as_json:
        listed: list[Json] = [_fields(each) for each in shown]
        print_json({"operator": operator, "from": before, "to": after, **counts, "changes": listed})
        return
    told = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    print_line(f"operator {operator}, epoch {before} to {after}: {told}")
    if shown:
        print_line()
        print_table(*as_table(shown), datum)
    if len(shown) < len(changes):
        print_line(f"... {len(changes) - len(shown):,} more; --limit 0 prints all, --key COLUMN=VALUE finds one")


def _sparks(
    store: Store,
    operator: str,
    sparks: Mapping[int, tuple[SparkState, int] | None],
    wanted: Mapping[str, str],
    options: Mapping[str, str],
) -> dict[int, Keyed]:
    """Return the rows of one of Spark's operators at each epoch.

    Raises `EpochNotFound` for an epoch without it, `ConfigInvalid` for one with an operator of the job of that name.
    """
    for epoch, found in sparks.items():
        if found is None:
            snapshot_of(store.log.manifest(epoch), operator)  # raises if that epoch has no such operator
            raise ConfigInvalid(
                f"operator '{operator}' is the job's at epoch {epoch}, and Spark's own at the other one",
                hint="compare two epochs at which it is the same operator",
            )
    named = {epoch: found for epoch, found in sparks.items() if found is not None}
    with sparks_rows_of("diff", store, named, options) as found_rows:
        tables = {epoch: rows.matching(wanted).toArrow() for epoch, rows in found_rows.items()}
        keys = {epoch: rows.keys for epoch, rows in found_rows.items()}
    by_key = {epoch: keyed(table, keys[epoch]) for epoch, table in tables.items()}
    if all(len(by_key[epoch]) == table.num_rows for epoch, table in tables.items()):
        return by_key
    # Several rows of one key have no order: a row is its own key, with a number if it occurs again.
    return {epoch: counted_rows(table) for epoch, table in tables.items()}


def changes_between(before: Keyed, after: Keyed) -> list[Change]:
    """Return the keys whose state differs, in text order."""
    changes = []
    for text in sorted(before.keys() | after.keys()):
        old, new = before.get(text), after.get(text)
        if old is None or new is None or old[1] != new[1]:
            keys = (new or old or ({}, {}))[0]
            changes.append(Change(keys, old and old[1], new and new[1]))
    return changes


def _fields(change: Change) -> dict[str, Json]:
    sides = {"key": plain(change.key), "before": plain(change.before), "after": plain(change.after)}
    return {"kind": change.kind, **sides}


def as_table(changes: Sequence[Change]) -> tuple[list[str], list[tuple[object, ...]]]:
    """Return columns and rows for `print_table`; both sides of a value that changed."""
    keys = list(changes[0].key)
    # Some have a timeout, others have none.
    names = list(dict.fromkeys(name for each in changes for name in (*(each.before or ()), *(each.after or ()))))
    rows = [(each.kind, *each.key.values(), *(_both(each, name) for name in names)) for each in changes]
    return ["", *keys, *names], rows


def _both(change: Change, name: str) -> object:
    if change.before is None or change.after is None:
        return (change.after or change.before or {}).get(name)
    old, new = change.before.get(name), change.after.get(name)
    return new if old == new else f"{datum(old)} -> {datum(new)}"
