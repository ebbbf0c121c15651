"""The consumed files of a directory: a few numbers in every cursor, the files themselves in a ledger.

The ledger is a folder of immutable segments. Each is a list of files, named by the digest of its content. A cursor
names the segments that together are everything consumed. An older cursor names older segments, so a restore needs
nothing more. Segments are merged as they grow, like the levels of a log-structured tree: n files are in at most log2(n)
segments, and each file is written log2(n) times.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_ckpt.connector import Cursor, Folder, Json
from spark_ckpt.errors import FormatUnknown, SourceInvalid
from spark_ckpt_files.listing import DataFile

FORMAT = 2
_SEGMENT = re.compile(r"(?P<count>\d{12})-[0-9a-f]{32}\.arrow")
_SCHEMA = pa.schema([("name", pa.string()), ("size", pa.int64()), ("modified_ms", pa.int64()), ("read", pa.bool_())])

Keep = Callable[[Sequence[DataFile], int], Sequence[DataFile]]
"""Function that returns the files to remember, given files and their newest modification time (Unix time in ms)."""


@dataclass(frozen=True, slots=True)
class Consumed:
    """Everything consumed so far: number of files, their bytes, and the newest modification time (Unix time in ms).

    That time is at most the time of consumption. `segments`: names of the ledger's files. `files`: files in no segment,
    because there is no ledger (yet).
    """

    count: int = 0
    bytes: int = 0
    newest_ms: int = 0
    segments: tuple[str, ...] = ()
    files: tuple[DataFile, ...] = ()

    def cursor(self, path: str) -> Cursor:
        """Return the cursor as JSON. `path` is the directory, for reports."""
        fields: dict[str, Json] = {"format": FORMAT, "path": path, "count": self.count, "bytes": self.bytes}
        fields |= {"newest_ms": self.newest_ms, "segments": list(self.segments)}
        return fields | ({"files": [_row(file) for file in self.files]} if self.files else {})

    @classmethod
    def of(cls, cursor: Cursor) -> Consumed:
        """Return the content of a cursor. Raises `FormatUnknown`, `SourceInvalid`."""
        if cursor.get("format") != FORMAT:
            raise FormatUnknown.of("a cursor of a files source", cursor.get("format"), FORMAT)
        try:
            numbers = {name: int(str(cursor[name])) for name in ("count", "bytes", "newest_ms")}
            segments = tuple(_checked(str(each)) for each in _list(cursor["segments"]))
            files = files_of(cursor.get("files", ()))
        except (KeyError, ValueError) as error:
            raise SourceInvalid(f"not a files cursor: {str(cursor)[:200]}") from error
        # The newest segment has the count in its name. A cursor whose segments were exchanged would make the job read
        # files twice or never.
        # Without segments, only a cursor of the beginning names no file.
        if (_count(segments[-1]) if segments else len(files) and numbers["count"]) != numbers["count"]:
            raise SourceInvalid(
                f"a files cursor that counts {numbers['count']} files does not name them: {str(cursor)[:200]}"
            )
        return cls(**numbers, segments=segments, files=files)


class FileLedger:
    """Segments of one source. Without a folder, cursors hold the files themselves."""

    def __init__(self, folder: Folder | None = None) -> None:
        self._folder = folder
        # Replaced, never changed: retention calls `files` and `sweep` on its thread while the job calls `after` on another.
        # A segment that one of them drops is read again.
        self._known: dict[str, tuple[DataFile, ...]] = {}

    def files(self, consumed: Consumed) -> dict[str, DataFile]:
        """Return everything consumed, by name. Raises `SourceInvalid` for a missing or damaged segment."""
        segments = [self._segment(name) for name in consumed.segments]
        return {file.name: file for files in (*segments, consumed.files) for file in files}

    def after(
        self,
        consumed: Consumed,
        batch: Sequence[DataFile],
        newest_ms: int = 0,
        keep: Keep = lambda files, _: files,
    ) -> Consumed:
        """Return the consumed files after `batch`. Its segment is durable on return.

        `newest_ms`: newest modification time of the batch. `keep` is called when all segments are merged into one: the
        files that it does not return are forgotten.
        """
        now = replace(
            consumed,
            count=consumed.count + len(batch),
            bytes=consumed.bytes + sum(file.size for file in batch),
            newest_ms=max(consumed.newest_ms, newest_ms),
        )
        if self._folder is None:
            return replace(now, files=(*consumed.files, *batch))
        chain, joined = list(consumed.segments), [*consumed.files, *batch]
        # Merge only with segments of at most the same size: a file is then rewritten at most log2(n) times.
        while chain and len(self._segment(chain[-1])) <= len(joined):
            joined = [*self._segment(chain.pop()), *joined]
        whole = joined if chain else keep(joined, now.newest_ms)
        chain.append(self._write(now.count, whole))
        self._known = {name: files for name, files in self._known.items() if name in chain}
        return replace(now, segments=tuple(chain), files=())

    def sweep(self, kept: Collection[Consumed]) -> int:
        """Delete segments that no kept cursor names, and return their number. A segment of a coming epoch stays.

        Such a segment counts more files than the epoch that its incarnation began from, which is kept.
        """
        if self._folder is None or not kept:
            return 0
        needed = {name for consumed in kept for name in consumed.segments} | self._known.keys()
        oldest = min(consumed.count for consumed in kept)
        # Of names that are no segments `_count` is huge, so that a foreign file in the folder stays.
        garbage = [name for name in self._folder.entries() if name not in needed and _count(name) <= oldest]
        self._folder.delete(garbage)
        return len(garbage)

    def _segment(self, name: str) -> tuple[DataFile, ...]:
        files = self._known.get(name)
        if files is None:
            files = self._read(name)
            self._known = {**self._known, name: files}
        return files

    def _read(self, name: str) -> tuple[DataFile, ...]:
        if self._folder is None:
            raise SourceInvalid("the cursor names a ledger, but the source was not given its folder")
        return decoded(segment_bytes(self._folder, name))

    def _write(self, count: int, files: Sequence[DataFile]) -> str:
        data = encoded(files)
        name = _named(count, data)
        # The name has the digest: a segment of this name has these files, and is durable.
        if self._folder is not None and name not in self._known:
            self._folder.write_bytes(name, data)
        self._known = {**self._known, name: tuple(files)}
        return name


def segment_bytes(folder: Folder, name: str) -> bytes:
    """Return the bytes of a segment. Raises `SourceInvalid` if it is missing or damaged."""
    try:
        data = folder.read_bytes(name)
    except FileNotFoundError as error:
        raise _damaged(folder, name, "is missing") from error
    # The name has the digest of the content: a damaged list of files would otherwise decide what is read again.
    if _named(_count(name), data) != name:
        raise _damaged(folder, name, "is not what was written")
    return data


def encoded(files: Sequence[DataFile]) -> bytes:
    """Return a list of files as bytes (Arrow)."""
    columns = [[getattr(file, name) for file in files] for name in _SCHEMA.names]
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, _SCHEMA, options=options) as writer:
        writer.write_table(pa.table(columns, schema=_SCHEMA))
    return bytes(sink.getvalue())


def decoded(data: bytes) -> tuple[DataFile, ...]:
    """Return the files of `encoded` bytes."""
    table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
    return tuple(map(DataFile, *(table.column(name).to_pylist() for name in _SCHEMA.names)))


def files_of(rows: Json) -> tuple[DataFile, ...]:
    """Return files from their JSON form. Raises `SourceInvalid` for a name that leads out of the directory."""
    return tuple(map(_file, _list(rows)))


def rows_of(files: Sequence[DataFile]) -> list[Json]:
    """Return files in their JSON form."""
    return [_row(file) for file in files]


def _row(file: DataFile) -> Json:
    row: list[Json] = [file.name, file.size, file.modified_ms]
    # A fourth field only for the rare file that was not read: an offset lists each file of its batch.
    return row if file.read else [*row, 0]


def _file(row: Json) -> DataFile:
    name, size, modified_ms, *read = _list(row)
    if not isinstance(name, str) or name.startswith("/") or ".." in name.split("/"):
        raise SourceInvalid(f"not a file of the directory: {name!r}")
    return DataFile(name, int(str(size)), int(str(modified_ms)), not read)


def _list(value: Json) -> Sequence[Json]:
    if not isinstance(value, list | tuple):
        raise SourceInvalid(f"not a files cursor: {value!r} is no list")
    return value


def _checked(segment: str) -> str:
    if _SEGMENT.fullmatch(segment) is None:
        raise SourceInvalid(f"not a ledger's segment: {segment!r}")
    return segment


def _count(segment: str) -> int:
    found = _SEGMENT.fullmatch(segment)
    return int(found["count"]) if found else 1 << 62


def _named(count: int, data: bytes) -> str:
    return f"{count:012}-{hashlib.blake2b(data, digest_size=16).hexdigest()}.arrow"


def _damaged(folder: Folder, name: str, what: str) -> SourceInvalid:
    return SourceInvalid(
        f"the list of consumed files {name} {what}: what was read is not known without it",
        folder=folder.uri,
        hint="restore the file from a backup of the store; or find an epoch without this damage (spark-ckpt verify "
        "STORE) and restore it, with FilesSource(..., ignoreMissingFiles=True)",
    )
