"""Find the faults of a target from its records alone, independent of the system and the broker.

Every output `key,n,rest` answers the input in one slot (see `workloads.Inputs`), or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.side_by_side.workloads import Inputs

_SHAPE = r"^k(?P<key>[0-9]{1,9}),(?P<n>[0-9]{1,9}),"
NO_SLOT = -1


@dataclass(frozen=True, eq=False)
class Outputs:
    """The committed records of one partition, in order, and their offsets."""

    values: pa.ChunkedArray
    offsets: np.ndarray


@dataclass(frozen=True)
class Verdict:
    """Faults of all partitions. `wrong`: not the expected output of its slot, or without a slot. `reordered`: after a later record
    of its key in the same partition, without repetitions.
    """

    records: int
    duplicates: int
    missing: int
    wrong: int
    reordered: int


@dataclass(frozen=True, eq=False)
class Progress:
    """For each partition: the inputs that its records cover, by offset."""

    offsets: list[np.ndarray]
    covered: list[np.ndarray]

    def at(self, ends: np.ndarray) -> np.ndarray:
        """Inputs covered below `ends`, which has a row per moment and a column per partition."""
        columns = [
            np.concatenate([[0], covered])[np.searchsorted(offsets, ends[:, partition])]
            for partition, (offsets, covered) in enumerate(zip(self.offsets, self.covered, strict=True))
        ]
        return np.stack(columns, axis=1)


def judge(
    partitions: Sequence[Outputs], inputs: Inputs, expected: pa.Array, *, every_input: bool
) -> tuple[Verdict, Progress]:
    """Compare the partitions' records with the expected one of each slot."""
    slots, wrong = _all_slots(partitions, inputs, expected)
    together = np.concatenate(slots)
    seen = together[together != NO_SLOT]
    times = np.bincount(seen, minlength=len(inputs))
    verdict = Verdict(
        records=len(together),
        duplicates=int(np.maximum(times - 1, 0).sum()),
        missing=_missing(times, inputs) if every_input else 0,
        wrong=wrong,
        reordered=sum(_reordered(each, inputs) for each in slots),
    )
    gains = _first_ones(slots, len(inputs)) if every_input else [_advances(each, inputs) for each in slots]
    return verdict, Progress([each.offsets for each in partitions], [np.cumsum(gain) for gain in gains])


def _all_slots(partitions: Sequence[Outputs], inputs: Inputs, expected: pa.Array) -> tuple[list[np.ndarray], int]:
    """Each record's slot, partition by partition, and how many are wrong."""
    slots, wrong = [], 0
    for outputs in partitions:
        found = [np.empty(0, np.int64)]
        for chunk in outputs.values.chunks:
            found.append(answered(chunk, inputs))
            wrong += _wrong(chunk, found[-1], expected)
        slots.append(np.concatenate(found))
    return slots, wrong


def answered(values: pa.Array, inputs: Inputs) -> np.ndarray:
    """Slot of each value's input, or `NO_SLOT`."""
    keys, n = _fields(values)
    known = (keys >= 0) & (keys < inputs.key_count)
    known[known] = (n[known] >= 1) & (n[known] <= inputs.counts[keys[known]])
    slots = np.full(len(values), NO_SLOT, np.int64)
    slots[known] = inputs.starts[keys[known]] + n[known] - 1
    return slots


def _wrong(values: pa.Array, slots: np.ndarray, expected: pa.Array) -> int:
    """Compare whole values, so that parsing key and n from them need not be strict."""
    known = slots != NO_SLOT
    wanted = expected.take(pa.array(slots[known])).cast(pa.binary())
    right = pc.sum(pc.equal(values.filter(pa.array(known)), wanted)).as_py() or 0
    return len(values) - right


def _fields(values: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Key and n of each value; -1 where there is none."""
    try:
        return _fields_of_well_formed(values)
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode(errors="replace") for value in values.to_pylist()]
        fields = pc.extract_regex(pa.array(texts, pa.string()), _SHAPE)
        key, n = (pc.struct_field(fields, name).cast(pa.int64()) for name in ("key", "n"))
        return _numbers(key), _numbers(n)


def _fields_of_well_formed(values: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Several times faster than an expression; rejects the chunk if one of its values has another shape."""
    parts = pc.split_pattern(values.cast(pa.string()), ",", max_splits=2)
    if values.null_count or not pc.all(pc.equal(pc.list_value_length(parts), 3)).as_py():
        raise pa.ArrowInvalid("not key,n,rest")
    fields = parts.flatten()
    rows = np.arange(0, len(fields), 3)
    keys = pc.utf8_slice_codeunits(fields.take(pa.array(rows)), 1).cast(pa.int64())
    return _numbers(keys), _numbers(fields.take(pa.array(rows + 1)).cast(pa.int64()))


def _numbers(values: pa.Array) -> np.ndarray:
    return pc.fill_null(values, -1).to_numpy(zero_copy_only=False).copy()


def _missing(times: np.ndarray, inputs: Inputs) -> int:
    """Unanswered inputs below the last answered one of their key."""
    answers = np.flatnonzero(times)
    keys = inputs.keys[inputs.order[answers]]
    last = np.full(inputs.key_count, NO_SLOT)
    last[keys] = answers  # slots rise within a key, so the largest remains
    seen = last != NO_SLOT
    return int((last[seen] - inputs.starts[seen] + 1).sum()) - len(answers)


def _reordered(slots: np.ndarray, inputs: Inputs) -> int:
    """Records of one partition after a later one of their key, among the first records of each slot."""
    firsts = slots[_first(slots, len(inputs))]
    keys = inputs.keys[inputs.order[firsts]]
    # Slots rise with keys, so the running maximum always belongs to the same key.
    by_key = firsts[np.argsort(keys, kind="stable")]
    return int((by_key < np.maximum.accumulate(by_key)).sum()) if len(firsts) else 0


def _first(slots: np.ndarray, inputs: int) -> np.ndarray:
    """Mask of the records that are the first of their slot."""
    known = np.flatnonzero(slots != NO_SLOT)
    first = np.empty(inputs, np.int64)
    first[slots[known[::-1]]] = known[::-1]  # of several assignments the last one remains
    return (slots != NO_SLOT) & (first[slots] == np.arange(len(slots)))


def _first_ones(slots: list[np.ndarray], inputs: int) -> list[np.ndarray]:
    """1 for each record that is the first to answer its input, else 0."""
    gains = _first(np.concatenate(slots), inputs).astype(np.int64)
    return np.split(gains, np.cumsum([len(each) for each in slots])[:-1])


def _advances(slots: np.ndarray, inputs: Inputs) -> np.ndarray:
    """Increase of each key's largest n by each record of one partition: a running value covers all inputs up to it."""
    gains = np.zeros(len(slots), np.int64)
    known = np.flatnonzero(slots != NO_SLOT)
    if not len(known):
        return gains
    keys = inputs.keys[inputs.order[slots[known]]]
    by_key = np.argsort(keys, kind="stable")
    largest = np.maximum.accumulate(slots[known][by_key])
    before = np.maximum(np.concatenate([[-1], largest[:-1]]), inputs.starts[keys[by_key]] - 1)
    gains[known[by_key]] = largest - before
    return gains
