"""Files of the state of Spark's own operators, as epochs name them.

Spark's state stores write files that never change. After a batch the state is a set of them in the checkpoint of the
incarnation. Each gets a second name here, because Spark deletes its own later: a hard link, a copy on another file
system, or an upload to an object store. A file that the previous epoch named keeps its name. An index per epoch lists the
set with sizes and digests; the manifest names the index.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from spark_ckpt.content import BLOCK_BYTES, check_bytes, damaged
from spark_ckpt.epochs import records
from spark_ckpt.epochs.records import Count, Digest, Manifest, Record, SparkState
from spark_ckpt.epochs.retention import garbage
from spark_ckpt.errors import EpochDamaged
from spark_ckpt.storage_errors import typed_errors_at
from spark_ckpt.store import durable
from spark_ckpt.store.location import FileInfo, Location, Written

_AT_A_TIME = 8
_UNSWEPT = 64
"""Number of indexes of new epochs that are kept in memory until a sweep."""
_CHECKSUM = ".crc"
"""Ending of Hadoop's checksums. The digests of the index replace them."""


class IndexedFile(Record):
    """A file of the state: `path` below `SparkStates.location`, and its `place` in the folder `state` of a checkpoint."""

    path: records.Path
    place: records.Path
    size_bytes: Count
    sha256: Digest


class StateIndex(Record):
    """Content of an index.

    `metadata`, `commit`: Spark's texts about the batch, see `checkpoint_files.seeded_checkpoint`.
    """

    metadata: str
    commit: str
    files: tuple[IndexedFile, ...]


@dataclass(frozen=True, slots=True)
class Moment:
    """A finished batch of an incarnation, as Spark's checkpoint describes it; see `SparkState` and `StateIndex`."""

    incarnation: int
    batch: int
    metadata: str
    commit: str
    provider: str
    checkpoint_format: int
    partitions: int
    operators: tuple[str, ...]


_Identity = tuple[int, int, int]
"""Inode, size in bytes and time of change in nanoseconds of a file of Spark's."""


@dataclass(slots=True)
class Known:
    """Files in the checkpoint of an incarnation that have a name in the store, by their place."""

    files: dict[str, tuple[IndexedFile, _Identity]] = field(default_factory=dict)

    def add(self, file: IndexedFile, found: os.stat_result) -> None:
        """Note a file that Spark has, as it was found."""
        self.files[file.place] = (file, _identity(found))

    def of(self, place: str, found: os.stat_result) -> IndexedFile | None:
        """Return the file that has a name already; None if Spark wrote another one at its place since."""
        known = self.files.get(place)
        return known[0] if known is not None and known[1] == _identity(found) else None

    def keep_only(self, files: Iterable[IndexedFile]) -> None:
        """Forget all other files."""
        self.files = {each.place: self.files[each.place] for each in files}


class SparkStates:
    """`<store>/spark`: files and indexes of all epochs."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self._indexes: dict[str, StateIndex] = {}
        self._most = _UNSWEPT

    # -- an epoch gets its files -----------------------------------------------------------------------------------------

    def keep(self, state: Path, places: Iterable[str], moment: Moment, known: Known) -> SparkState:
        """Give every file of the state a name in the store; return the record for the manifest. Durable at the return.

        - `state`: the folder `state` of the incarnation's checkpoint.
        - `places`: the files of the batch's version in it, relative to it.
        - `known`: files that earlier epochs named; updated.

        Raises `FileNotFoundError` if Spark has deleted a file meanwhile, and a `StoreOutage`.
        """
        if self.location.local is not None:
            durable.make_folder(self.location.local, self.location.root)
        wanted = [place for place in places if not place.endswith(_CHECKSUM)]
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            files = tuple(pool.map(partial(self._named, state, moment, known), wanted))
        # The index is written last: its fsync of the folder makes the names of all files durable as well.
        index = StateIndex(metadata=moment.metadata, commit=moment.commit, files=files)
        name, content = self._name(moment, "index.json"), index.model_dump_json().encode()
        with self.location.open_output(name) as output:
            output.write(content)
        known.keep_only(files)
        # A standby may do the retention, and then nothing here forgets the epochs that it drops.
        if len(self._indexes) >= self._most:
            self._indexes.clear()
        self._indexes[name] = index
        return SparkState(
            incarnation=moment.incarnation,
            batch=moment.batch,
            index=name,
            size_bytes=len(content),
            sha256=output.sha256,
            files=len(files),
            state_bytes=sum(file.size_bytes for file in files),
            provider=moment.provider,
            checkpoint_format=moment.checkpoint_format,
            partitions=moment.partitions,
            operators=moment.operators,
        )

    def _named(self, state: Path, moment: Moment, known: Known, place: str) -> IndexedFile:
        source = state / place
        # Before the link: if Spark replaces the file in between, its identity does not match at the next epoch, and it
        # is named again.
        found = source.stat()
        file = known.of(place, found)
        if file is not None:
            return file
        name, folder = self._name(moment, place.replace("/", "-")), self.location.local
        size_bytes, sha256 = self._uploaded(source, name) if folder is None else _linked(source, folder / name)
        file = IndexedFile(path=name, place=place, size_bytes=size_bytes, sha256=sha256)
        known.add(file, found)
        return file

    def _uploaded(self, source: Path, name: str) -> Written:
        with typed_errors_at(str(source)), source.open("rb") as file, self.location.open_output(name) as output:
            shutil.copyfileobj(file, output, BLOCK_BYTES)
        return Written(output.tell(), output.sha256)

    def _name(self, moment: Moment, of: str) -> str:
        # Retention finds the incarnation at the beginning; the random part keeps a dead driver's names apart.
        return f"i{moment.incarnation}-b{moment.batch}-{uuid.uuid4().hex[:12]}-{of}"

    # -- an incarnation begins with them -----------------------------------------------------------------------------------

    def lay_out(self, record: SparkState, state: Path, epoch: int) -> tuple[StateIndex, Known]:
        """Give every file of the record its place in `state`, the folder of a new checkpoint, after its bytes were compared.

        Raises `EpochDamaged`, and a `StoreOutage`. After an error `state` may have some of the files.
        """
        index, known = self.index(record, epoch=epoch), Known()
        for folder in {(state / file.place).parent for file in index.files}:
            with typed_errors_at(str(folder)):
                folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            list(pool.map(partial(self._place, state, epoch), index.files))
        # The next epoch recognises these files and names only those that Spark writes from now on.
        for file in index.files:
            known.add(file, (state / file.place).stat())
        return index, known

    def _place(self, state: Path, epoch: int, file: IndexedFile) -> None:
        target, folder = state / file.place, self.location.local
        if folder is None:
            self.location.download(file, target, epoch=epoch, location=self.location.uri)
            return
        # Spark has no checksums of its own here, so damage must be found before it loads the file.
        self._verify(file, deep=True, epoch=epoch)
        with typed_errors_at(str(target)):
            durable.link_or_copy(folder / file.path, target)

    # -- reading -----------------------------------------------------------------------------------------------------------

    def index(self, record: SparkState, **where: object) -> StateIndex:
        """Return the index of a record. Raises `EpochDamaged` with the context `where`, and a `StoreOutage`."""
        known = self._indexes.get(record.index)
        if known is not None:
            return known
        named = _Index(record.index, record.size_bytes, record.sha256)
        try:
            content = self.location.read_bytes(record.index)
        except FileNotFoundError:
            raise damaged(record.index, "is missing", **where, location=self.location.uri) from None
        check_bytes(named, content, **where, location=self.location.uri)
        try:
            index = StateIndex.model_validate_json(content)
        except ValidationError:
            raise damaged(record.index, "is no index of a state", **where, location=self.location.uri) from None
        self._indexes[record.index] = index
        return index

    def verify(self, record: SparkState, deep: bool, **where: object) -> None:
        """Check that every file exists with its size; with `deep`, compare the bytes, too.

        Raises `EpochDamaged` with the context `where`, and a `StoreOutage`.
        """
        # The cached content says nothing about the file.
        self._indexes.pop(record.index, None)
        for file in self.index(record, **where).files:
            self._verify(file, deep=deep, **where)

    def checks(self, record: SparkState, **where: object) -> Iterator[tuple[str, Callable[[], None]]]:
        """Yield the path of each file with a function that compares its bytes. Both may raise as a deep `verify`."""
        for file in self.index(record, **where).files:
            yield file.path, partial(self._verify, file, deep=True, **where)

    def _verify(self, file: IndexedFile, *, deep: bool, **where: object) -> None:
        if deep:
            self.location.verify(file, **where, location=self.location.uri)
            return
        found = self.location.size(file.path)
        if found != file.size_bytes:
            was = "is missing" if found is None else f"has {found} bytes, {file.size_bytes} were committed"
            raise damaged(file.path, was, **where, location=self.location.uri)

    # -- retention -----------------------------------------------------------------------------------------------------------

    def sweep(self, kept: Iterable[Manifest], dropped: Iterable[Manifest], incarnation: int) -> list[FileInfo]:
        """Delete the files that no kept epoch needs; see `retention.garbage`. Return them.

        Deletes nothing if the index of a kept epoch cannot be read.
        """
        found = {info.path: info for info in self.location.list()}
        try:
            needed = self._paths(kept)
        except EpochDamaged:
            return []
        gone = garbage(found, "", needed, self._paths(dropped, lost=True), incarnation)
        self.location.delete(gone)
        for path in gone:
            self._indexes.pop(path, None)
        self._most = len(self._indexes) + _UNSWEPT  # room for the epochs until the next sweep
        return [found[path] for path in gone]

    def _paths(self, manifests: Iterable[Manifest], *, lost: bool = False) -> set[str]:
        """Return the paths that manifests name. `lost`: skip an index that cannot be read."""
        paths: set[str] = set()
        for manifest in manifests:
            if manifest.spark_state is None:
                continue
            try:
                files = self.index(manifest.spark_state, epoch=manifest.epoch).files
            except EpochDamaged:
                if not lost:
                    raise
                continue
            paths |= {manifest.spark_state.index, *(file.path for file in files)}
        return paths


@dataclass(frozen=True, slots=True)
class _Index:
    """The index as a committed file."""

    path: str
    size_bytes: int
    sha256: str


def _linked(source: Path, target: Path) -> Written:
    """Give a file a second name; return its size and digest. It is durable at the return. Raises a `StoreOutage`."""
    with typed_errors_at(str(target)):
        durable.link_or_copy(source, target)
        # Read under the new name: what Spark puts at the old one later is another file.
        with target.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
            size_bytes = file.tell()
            os.fsync(file.fileno())  # Spark's bytes may be in the page cache only
    durable.step("fsync", str(target))
    return Written(size_bytes, digest.hexdigest())


def _identity(found: os.stat_result) -> _Identity:
    return (found.st_ino, found.st_size, found.st_mtime_ns)
