"""Put rows into the state of a key group, and read its values, for the tests of that state."""

import numpy as np
import pyarrow as pa
from operator_fixtures import MemoryStore, group_of, hashes_of, snapshot, spread

from spark_ckpt.tasks.rows import NO_TIMEOUT, StateSchema

SCHEMA = StateSchema(pa.schema([("k", pa.string())]), pa.schema([("v", pa.int64()), ("s", pa.string())]))
NAMES = [f"k{i}" for i in range(12)]


def keys_of(names):
    return pa.table({"k": pa.array(list(names), pa.string())})


def put(group, values, *, removed=None, timeouts=None, hasher=spread):
    keys = keys_of(values)
    state = pa.table({"v": pa.array(list(values.values()), pa.int64()), "s": [f"s{v}" for v in values.values()]})
    removed = None if removed is None else np.array([name in removed for name in values])
    timeouts = None if timeouts is None else np.array([timeouts.get(name, NO_TIMEOUT) for name in values])
    group.put(keys, hashes_of(keys, hasher), state, removed=removed, timeout_ms=timeouts)


def values_in(group, names, hasher=spread):
    keys = keys_of(names)
    resolved = group.resolve(keys, hashes_of(keys, hasher))
    assert (resolved.state.column("v").is_valid().to_numpy() == resolved.exists).all()
    found = zip(names, resolved.exists, resolved.state.column("v").to_pylist(), strict=True)
    return {name: value for name, exists, value in found if exists}


def due(group, now, hasher=spread):
    expired = group.expired(now)
    assert expired.hashes.tolist() == hashes_of(expired.keys, hasher).tolist()
    return sorted(expired.keys.column("k").to_pylist())


def removed_above_another_level(folder):
    """Return a hundred keys in one level, and a newer level of two files: the first removes `k5`, the other sets `k6` to 60."""
    store = MemoryStore()
    group = group_of(SCHEMA, folder, store)
    put(group, {f"k{i}": i for i in range(100)})
    snapshot(group, store, 1)
    put(group, {"k5": 0}, removed={"k5"})
    snapshot(group, store, 2)
    put(group, {"k6": 60})
    snapshot(group, store, 3)
    assert [len(level) for level in group.have_levels()] == [2, 1]
    return group
