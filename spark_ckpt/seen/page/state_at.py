"""State of keys at two epochs, side by side, read from the store's files."""

from __future__ import annotations

from collections.abc import Mapping

from spark_ckpt.connector import Json
from spark_ckpt.json_values import plain
from spark_ckpt.store.ddl import column_names
from spark_ckpt.store.state_rows import keyed, snapshot_of, visible, with_keys
from spark_ckpt.store.store import Store

MOST_KEYS = 50


def state_at(store: Store, operator: str, before: int, after: int, keys: Mapping[str, str]) -> Json:
    """Up to `MOST_KEYS` keys whose columns have the values `keys`, first those that differ. Null: the key has no state.

    Raises `EpochNotFound`, `EpochDamaged`, `ConfigInvalid` (no such key column, or no value of its type).
    """
    old, new = (_keyed(store, operator, epoch, keys) for epoch in (before, after))
    texts = sorted(old.keys() | new.keys(), key=lambda text: (old.get(text) == new.get(text), text))
    rows: list[Json] = [
        {
            "key": plain((new.get(text) or old[text])[0]),
            "before": plain(old[text][1]) if text in old else None,
            "after": plain(new[text][1]) if text in new else None,
        }
        for text in texts[:MOST_KEYS]
    ]
    return {"operator": operator, "before": before, "after": after, "matching": len(texts), "rows": rows}


def _keyed(
    store: Store, operator: str, epoch: int, keys: Mapping[str, str]
) -> Mapping[str, tuple[Mapping[str, object], Mapping[str, object]]]:
    snapshot = snapshot_of(store.log.manifest(epoch), operator)
    table = visible(with_keys(store.state(operator).read(epoch), snapshot, keys), snapshot)
    return keyed(table, column_names(snapshot.key_schema))
