"""Discovery of checkpoints: a folder that the user names is a checkpoint or a pipeline's storage root.

The storage root of a declarative pipeline holds one checkpoint per flow.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_ckpt.errors import CheckpointForeign, ConfigInvalid
from spark_ckpt.spark_internals.pipeline_flows import FLOWS, LEVELS_MAX, is_checkpoint, newest_version
from spark_ckpt.spark_internals.query_logs import ID_FILE
from spark_rewind.reading import entries

SET_ASIDE = re.compile(r"(.+)\.(?:before-rewind|rewound|rewinding|undoing)-[0-9a-f]{12}")
"""Name of a checkpoint that a rewind set aside: the checkpoint's own name and a suffix with the plan's id."""


@dataclass(frozen=True, slots=True)
class Place:
    """A checkpoint's folder.

    `parts` are the components of its name. The shortest ending of at least `least` parts that no other checkpoint
    shares becomes its name.
    """

    folder: Path
    parts: tuple[str, ...]
    least: int = 1

    def ending(self, length: int) -> tuple[str, ...]:
        """Return the last `length` parts."""
        return self.parts[-length:]


@dataclass(frozen=True, slots=True)
class Places:
    """Checkpoints by name, with a note about each one that is left out."""

    named: dict[str, Path]
    notes: tuple[str, ...] = ()


def find_places(folders: Sequence[Path]) -> Places:
    """Find the checkpoints in folders that a user named.

    Return them by name. Raises `ConfigInvalid`, `CheckpointForeign`, `CheckpointUnreadable`.
    """
    if not folders:
        raise ConfigInvalid("no checkpoint was named", hint="name the checkpoint folder of each query")
    found: list[Place] = []
    chosen, notes = _without_set_aside(folders)
    for folder in chosen:
        if _is_storage_root(folder):
            flows, resting = _flows(folder)
            found += flows
            notes += resting
        else:
            found.append(Place(folder, folder.parts))
    _refuse_twice([each.folder for each in found])
    return Places({_name(each, found): each.folder for each in found}, tuple(notes))


def _without_set_aside(folders: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Leave out checkpoints that a rewind set aside, if their original is named too: `checkpoints/*` names both."""
    # Alone it is meant: a user may look into a checkpoint that a rewind has kept.
    named = set(folders)
    aside = {
        folder
        for folder in folders
        if (made := SET_ASIDE.fullmatch(folder.name)) and folder.with_name(made[1]) in named
    }
    notes = [f"{folder} was set aside by a rewind: it is left out" for folder in folders if folder in aside]
    return [folder for folder in folders if folder not in aside], notes


def _is_storage_root(folder: Path) -> bool:
    return (folder / FLOWS).is_dir() and not (folder / ID_FILE).exists()


def _flows(root: Path) -> tuple[list[Place], list[str]]:
    found, notes = [], []
    # a flow lies at `_checkpoints/<table>/<flow>/<version>`; the depth is bounded, so that no foreign tree is walked
    for parts, folder in _below(root / FLOWS, (), LEVELS_MAX):
        if (folder / ID_FILE).is_file():
            # two parts at least, table/flow: flows of different tables often share a name
            found.append(Place(folder, (*root.parts, *parts), least=2))
        else:
            # It has no history to roll back.
            flow = "/".join(parts)
            notes.append(
                f"flow {flow} of {root} was reset to version {folder.name} and has not run since: it is left out"
            )
    if not found:
        hint = "name the pipeline's storage root (`storage` in its specification), once it has run"
        raise CheckpointForeign(f"{root} holds no flow of a declarative pipeline in {FLOWS}", hint=hint)
    return found, notes


def _below(folder: Path, parts: tuple[str, ...], levels: int) -> Iterator[tuple[tuple[str, ...], Path]]:
    """Yield (name, newest version) of each flow below a folder."""
    inner = [each.name for each in entries(folder) if each.is_dir()]
    # A number alone makes no version: tables and databases may be named so.
    versions = [name for name in inner if newest_version([name]) and is_checkpoint(_names(folder / name))]
    newest = newest_version(versions)
    if newest is not None:
        yield parts, folder / newest
    elif levels:
        for name in inner:
            yield from _below(folder / name, (*parts, name), levels - 1)


def _names(folder: Path) -> list[str]:
    return [each.name for each in entries(folder)]


def _refuse_twice(paths: Sequence[Path]) -> None:
    twice = next((path for path, count in Counter(each.resolve() for each in paths).items() if count > 1), None)
    if twice is not None:
        raise ConfigInvalid(f"{twice} was named twice", hint="name each query's checkpoint once")


def _name(place: Place, others: Sequence[Place]) -> str:
    """Return the shortest ending of a place's parts that distinguishes it from the others."""
    length = place.least
    # 1: the place itself is among the others.
    while length < len(place.parts) and sum(each.ending(length) == place.ending(length) for each in others) > 1:
        length += 1
    return "/".join(place.ending(length))
