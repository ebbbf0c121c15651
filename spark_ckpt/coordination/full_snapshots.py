"""The key groups that write full snapshots at a barrier. Pure.

A chain of changes must not grow for ever, so from time to time a key group writes all its live rows. A full snapshot
leaves out deleted keys. The files before it still have them, and readers of the operator's Delta table see whole files.
So all key groups that share a file, directly or through others, write full snapshots at the same barrier. Their older
files then leave the table together.

Key groups of one task share files, so tasks take turns. After a start with another number of tasks, files connect the
key groups of several tasks. These write full snapshots at one barrier, once.

If a task misses that barrier, the epoch is aborted, but the full files of the other tasks stay. Then the older files have
ranges that are in no chain, and all these key groups write full snapshots at the next barrier.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter

from spark_ckpt.epochs.records import StateFile, chain_of

_AT_MOST = 8
"""So many times the files after which a full snapshot may come, it comes however large the state is."""


def connected(files: Iterable[StateFile]) -> list[tuple[frozenset[int], list[StateFile]]]:
    """Return the sets of key groups that are connected by shared files, each with its files, in any order."""
    # The files of a task have the same key groups.
    alike: dict[frozenset[int], list[StateFile]] = {}
    for file in files:
        alike.setdefault(file.key_groups, []).append(file)
    home: dict[int, set[int]] = {}
    for groups in alike:
        # All key groups of a connected set share one set object, so identity tells the sets apart without a comparison.
        joined = {id(found): found for group in groups if (found := home.get(group))}
        merged = set(groups).union(*joined.values())
        # All of them in one set already: nothing to update.
        if len(joined) == 1 and len(merged) == len(next(iter(joined.values()))):
            continue
        home.update(dict.fromkeys(merged, merged))
    of: dict[int, list[StateFile]] = {}
    for groups, own in alike.items():
        of.setdefault(id(home[min(groups)]), []).extend(own)  # any of the groups leads to the set
    sets = {id(each): each for each in home.values()}
    return [(frozenset(sets[each]), found) for each, found in of.items()]


def due(files: Collection[StateFile], after: int, chained: int) -> frozenset[int]:
    """Return the key groups of an operator that should write full snapshots at the next barrier.

    `files`: the live files of the operator. `after`: number of files of a task from which full ones may
    come. `chained`: number of the files' ranges that are in a chain.
    """
    sets = connected(files)
    found = [groups for groups, own in sets if _is_due(groups, own, after)]
    # A look at every chain would cost a driver of many tasks too much at each barrier.
    if chained < sum(len(file.ranges) for file in files):
        found += [groups for groups, own in sets if _is_torn(own)]
    return frozenset().union(*found)


def _is_torn(files: Sequence[StateFile]) -> bool:
    """Return True if a file has a range that is in no chain."""
    oldest_first = sorted(files, key=attrgetter("epoch"))
    return any(file not in chain_of(oldest_first, group) for file in files for group in file.key_groups)


def _is_due(groups: frozenset[int], files: Sequence[StateFile], after: int) -> bool:
    """Return True if there are too many files to restore from.

    The rule writes about one full file per half of its rows. Numbers of key groups spread full files over epochs.
    """
    turn = min(groups) % after
    # `turn` spreads the full files of tasks over epochs. Otherwise all of them would write their whole state at one
    # barrier.
    if len(files) <= after + turn:
        return False
    base = sum(file.rows for file in files if file.kind == "full")
    changes = sum(file.rows for file in files if file.kind != "full")
    # A large state is not written again for few changes, but its chain stays bounded.
    return changes > base / 2 or len(files) >= _AT_MOST * after + turn


def asking(by_operator: Mapping[str, frozenset[int]]) -> str:
    """Return the text of a marker that asks these key groups for full snapshots; empty if it asks none.

    It has four key groups of an operator in one hexadecimal digit, the first digit has those below four. The text stays
    with the marker: `GroupHost.control` reads from it a bit for each key group.
    """
    wanted = {name: f"{sum(1 << group for group in groups):x}"[::-1] for name, groups in by_operator.items() if groups}
    return json.dumps(wanted, separators=(",", ":")) if wanted else ""


def is_asked(text: str, operator: str, key_group: int) -> bool:
    """Return True if the text of a marker asks the key group for a full snapshot."""
    digit, bit = divmod(key_group, 4)
    digits = json.loads(text).get(operator, "") if text else ""  # beyond the text: not asked
    return bool(int(digits[digit : digit + 1] or "0", 16) >> bit & 1)
