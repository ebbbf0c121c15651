"""Compares the state of keys at two epochs, read from the store's files."""

from __future__ import annotations

from collections.abc import Mapping

from spark_ckpt.connector import Json
from spark_ckpt.json_values import plain
from spark_ckpt.store.state_rows import keyed_beside
from spark_ckpt.store.store import Store

MOST_KEYS = 50


def state_at(store: Store, operator: str, before: int, after: int, keys: Mapping[str, str]) -> Json:
    """Return up to `MOST_KEYS` keys whose columns have the values `keys`, differing ones first. Null: the key has no
    state.

    Raises `EpochNotFound`, `EpochDamaged`, `ConfigInvalid` (no such key column, or no value of its type).
    """
    old, new = (keyed_beside(store, operator, *epochs, keys) for epochs in ((before, after), (after, before)))
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
