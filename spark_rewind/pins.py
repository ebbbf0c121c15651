"""Folder of pinned points. Each point is a folder that appears atomically and never changes.

`points/<id>/point.json` lists the content of a point. `points/<id>/queries/<number>` is a checkpoint as of the pinned
batch. A folder whose name begins with a dot is in preparation or being removed, and is no point.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from spark_ckpt.errors import (
    CkptError,
    ConfigInvalid,
    EpochDamaged,
    EpochNotFound,
    FormatUnknown,
    PinNotFound,
    PinsForeign,
    PinsInUse,
    StoreForeign,
    StoreOutage,
)
from spark_ckpt.wording import complaint
from spark_rewind.durable import locked, remove_tree, sync_folder, written
from spark_rewind.reading import entries, text_of

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)B?")


def bytes_of(written: str) -> int:
    """Return the number of bytes of a text such as 500MB, 10GiB or 1000. Raises `ConfigInvalid`."""
    found = _SIZE.fullmatch(written.strip())
    if found is None or float(found[1]) <= 0 or (found[3] and not found[2]):
        raise ConfigInvalid(f"budget {written} is no size", hint="write for example 10GiB")
    # The place of the letter is the power, and a blank stands for none.
    return int(float(found[1]) * (1024 if found[3] else 1000) ** " KMGT".index(found[2].upper() or " "))


FORMAT = 3
POINTS, MANIFEST, QUERIES, TABLES = "points", "point.json", "queries", "tables"
SMALL_BYTES_MAX = 1 << 20
"""Largest size in bytes of a file that is compared by digest. Larger files are compared by size."""

FileId = tuple[int, int]
"""Device and inode: identity of a file with any number of names."""


class _PointPart(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class PinnedFile(_PointPart):
    """A pinned file.

    `path`: below the query's folder in the point. `sha256`: digest of its content, None for a large file.
    """

    path: str
    size: int = Field(ge=0)
    sha256: str | None = None


class PinnedQuery(_PointPart):
    """A query at a batch; -1: it has not begun and holds no files.

    `kept_in`: its folder in the point. `inode`: of the checkpoint's folder at the time of the pin. A rewind replaces
    that folder by another one.
    """

    name: str
    folder: str
    query: str
    batch: int = Field(ge=-1)
    committed_ms: int | None
    inode: int
    kept_in: str
    files: list[PinnedFile]


class PinnedTable(_PointPart):
    """A table at a version, -1 before its first.

    `kept_in`: folder in the point that holds its data files, `files`. It is empty for a point without data files; then
    only the table's own retention keeps them.
    """

    path: str
    ids: list[str]
    version: int = Field(ge=-1)
    kept_in: str = ""
    files: list[PinnedFile] = []


class PinnedOutbox(_PointPart):
    """The outbox of a query. A savepoint with the name `savepoint` keeps `epoch` in the log of its store."""

    store: str
    name: str
    query: str
    epoch: int = Field(ge=1)
    savepoint: str


class PinnedPoint(_PointPart):
    """One line of batches and versions. A point with a `name` stays until it is unpinned by that name."""

    format: int = Field(default=FORMAT, ge=1, le=FORMAT)
    id: str
    name: str | None
    taken_at_ms: int
    queries: list[PinnedQuery]
    tables: list[PinnedTable]
    outboxes: list[PinnedOutbox] = []

    @property
    def label(self) -> str:
        """Name of the point, its id without one."""
        return self.name or self.id


@dataclass(frozen=True, slots=True)
class KeptPoint:
    """A point with its folder. `broken`: reason why its content cannot be read; `point` is then None."""

    folder: Path
    point: PinnedPoint | None
    broken: str | None = None

    def files(self) -> dict[FileId, int]:
        """Return the sizes of its files, in bytes."""
        return dict(_sizes(self.folder))


def kept_points(pins: Path) -> list[KeptPoint]:
    """Return all points, oldest first.

    Raises `PinsForeign` for a folder without points, `CheckpointUnreadable`.
    """
    if not (pins / POINTS).is_dir():
        hint = "name the folder that was given as `--into` to `spark-ckpt rewind pin`"
        raise PinsForeign(f"{pins} is no folder of pinned points: there is no folder `{POINTS}` in it", hint=hint)
    folders = [pins / POINTS / each.name for each in entries(pins / POINTS) if each.is_dir() and each.name[0] != "."]
    found = [kept for folder in folders if (kept := _read(folder)) is not None]
    return sorted(found, key=lambda each: (each.point.taken_at_ms if each.point else 0, each.folder.name))


def _read(folder: Path) -> KeptPoint | None:
    """Return the point in a folder, None for one that was removed meanwhile."""
    try:
        return KeptPoint(folder, PinnedPoint.model_validate_json(text_of(folder / MANIFEST)))
    except FileNotFoundError:
        return KeptPoint(folder, None, f"its {MANIFEST} is missing") if folder.is_dir() else None
    except ValidationError as error:
        return KeptPoint(folder, None, f"its {MANIFEST} is damaged: {complaint(error, 'all of it')}")
    except CkptError as error:
        return KeptPoint(folder, None, error.what)


# -- what a point holds ----------------------------------------------------------------------------------------------------


def listed(folder: Path, known: Mapping[FileId, str]) -> list[PinnedFile]:
    """List the files of a query's folder and make them durable.

    `known`: digests of files that other points hold; these are not read again.
    """
    return [_listed(folder, path, known) for path in sorted(folder.rglob("*")) if not path.is_dir()]


def _listed(folder: Path, path: Path, known: Mapping[FileId, str]) -> PinnedFile:
    with written(path), path.open("rb") as file:
        found = os.fstat(file.fileno())
        digest = known.get((found.st_dev, found.st_ino))
        # a file that another point holds is durable already
        if digest is None:
            # Spark leaves the flush of its files to the kernel, and a pinned file has to outlive a power failure.
            os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest() if found.st_size <= SMALL_BYTES_MAX else None
    return PinnedFile(path=str(path.relative_to(folder)), size=found.st_size, sha256=digest)


def digests_of(points: Iterable[KeptPoint]) -> dict[FileId, str]:
    """Return the digests that points have recorded, by file."""
    found: dict[FileId, str] = {}
    for kept in points:
        for query in kept.point.queries if kept.point else ():
            for file in query.files:
                status = _status(kept.folder / query.kept_in / file.path)
                # A file of another size is damaged: its digest must not pass to the next point.
                if file.sha256 is not None and status is not None and status.st_size == file.size:
                    found[status.st_dev, status.st_ino] = file.sha256
    return found


def damage(kept: KeptPoint, query: PinnedQuery) -> str | None:
    """Return the damage to a query's files in a point, None if they are as they were pinned."""
    for file in query.files:
        path = kept.folder / query.kept_in / file.path
        status = _status(path)
        if status is None:
            return f"pinned file {path} is missing"
        if status.st_size != file.size or not stat.S_ISREG(status.st_mode):
            return f"pinned file {path} has {status.st_size} bytes, not {file.size}"
        if file.sha256 is not None and _digest(path) != file.sha256:
            return f"pinned file {path} has another content than when it was pinned"
    return None


def _digest(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _status(path: Path) -> os.stat_result | None:
    try:
        # Not `stat`: a point holds files, and a symbolic link in their place is damage.
        return path.lstat()
    except OSError:
        return None


def _sizes(folder: Path) -> Iterator[tuple[FileId, int]]:
    for root, _, names in os.walk(folder):
        for name in names:
            if (status := _status(Path(root, name))) is not None:
                yield (status.st_dev, status.st_ino), status.st_size


# -- taking away -----------------------------------------------------------------------------------------------------------


@contextmanager
def held(pins: Path) -> Iterator[None]:
    """Hold the exclusive lock of a folder of points, and remove leftovers of a process that died.

    Raises `PinsInUse`.
    """
    with written(pins):
        if not (pins / ".lock").exists():  # the lock comes last, so that a call after a kill flushes the names again
            _make_durable(pins / POINTS)
    taken = PinsInUse(f"another process is changing {pins}", hint="wait until it is done, and run this again")
    with locked(pins / ".lock", taken):
        # under the lock, a hidden folder belongs to no living process
        for each in entries(pins / POINTS):
            if each.name[0] == ".":
                remove_for_now(pins / POINTS / each.name)
        yield


def _make_durable(points: Path) -> None:
    """Create the folder of points. A power failure must lose none of the names that lead to it."""
    missing = [each for each in (points, *points.parents) if not each.exists()]
    points.mkdir(parents=True, exist_ok=True)
    for parent in {points.parent, points.parent.parent, *(each.parent for each in missing)}:
        # a folder that cannot even be listed is not of this process
        with suppress(PermissionError):
            sync_folder(parent)


def take_away(kept: KeptPoint) -> None:
    """Remove a point atomically. Files with other links stay there."""
    remove_point(hide(kept))


def hide(kept: KeptPoint) -> Path:
    """Give a point a hidden name, which takes it away at once, and return its folder. The next pin clears that."""
    # One rename: a reader of the points sees the point with all of its files, or not at all.
    hidden = kept.folder.with_name(f".gone-{kept.folder.name}")
    with written(kept.folder):
        kept.folder.rename(hidden)
        sync_folder(hidden.parent)
    return hidden


def remove_for_now(folder: Path) -> None:
    """Remove a hidden point. If the store of an outbox does not answer or cannot be read, a later call does."""
    # One store that is away, or is of a newer version, must not end every later pin of this folder, also of other queries.
    with suppress(StoreOutage, EpochDamaged, FormatUnknown):
        remove_point(folder)


def remove_point(folder: Path) -> None:
    """Drop the savepoints of a point's outboxes, then its folder. Raises a `StoreOutage`; the next call continues."""
    # Savepoints first: without the list in the folder none could find them, and retention would keep their epochs for ever.
    kept = _read(folder) if folder.is_dir() else None
    for outbox in kept.point.outboxes if kept is not None and kept.point is not None else ():
        _drop_savepoint(outbox)
    remove_tree(folder)


def _drop_savepoint(outbox: PinnedOutbox) -> None:
    from spark_rewind.outboxes import drop_savepoint

    # a store that is gone, or another one now, holds nothing for the point
    with suppress(StoreForeign, EpochNotFound):
        drop_savepoint(outbox.store, outbox.savepoint)


def unpin(pins: Path, name: str) -> KeptPoint:
    """Remove a point by its name or id. Raises `PinNotFound`, `PinsForeign`, `PinsInUse`."""
    # raises for a wrong folder before the lock creates files in it
    kept_points(pins)
    with held(pins):
        points = kept_points(pins)
        found = named_point(points, name)
        if found is None:
            known = ", ".join(each.point.label if each.point else each.folder.name for each in points) or "none"
            raise PinNotFound(f"{pins} holds no point {name!r}", hint=f"there are: {known}")
        take_away(found)
        return found


def named_point(points: Sequence[KeptPoint], name: str) -> KeptPoint | None:
    """Return the point with a name or id, None without one."""
    # A name never looks like an id (`pinning._check_name`), so that at most one point fits.
    return next((each for each in points if (each.point and each.point.name == name) or each.folder.name == name), None)
