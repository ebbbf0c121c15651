"""Files below one folder, local or in an object store. Both take one code path, with the options of the Delta tables.

Files get unique names and appear whole or not at all: through an upload to the object store, or through a hidden part
file that is renamed. On a local file system contents and folder are fsynced before a write returns.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import hashlib
import io
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, cast

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler

from spark_ckpt.content import WAY_OUT, Committed, check, check_bytes, damaged
from spark_ckpt.epochs.names import valid_name, valid_path
from spark_ckpt.errors import CkptError, ConfigInvalid, EpochDamaged
from spark_ckpt.place import local_path
from spark_ckpt.storage_errors import one_line, outage, refusal_in, taken_away, typed_errors_at
from spark_ckpt.store import durable, ranges
from spark_ckpt.store.uploads import UploadFailed, delete_objects, list_objects, open_upload, read_object
from spark_ckpt.wording import counted

SEAL = b"ckpt.seal"
_PARALLEL_DELETES = 8
_LIST_RATHER_THAN_ASK = 64


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file below a location. `path` is relative to it, `modified_ms` by the store's clock, ms since 1970 UTC."""

    path: str
    size_bytes: int
    modified_ms: int


class Written(NamedTuple):
    """Result of a durable write: size and SHA-256 of the bytes, in hexadecimal."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Location:
    """A folder, local or in an object store. Picklable and cheap: each process opens it at the first use.

    Relative local paths become absolute. Object-store URLs take `storage_options` as deltalake does; they are never
    shown. `root`: folder that no write creates: a store that is moved away while a job runs must find its place free when it
    comes back. None: writes create all folders.

    Raises `ConfigInvalid` for an empty location.
    """

    uri: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    root: Path | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "uri", _normalised(self.uri))
        object.__setattr__(self, "storage_options", dict(self.storage_options))

    @functools.cached_property
    def local(self) -> Path | None:
        """Path of the folder if it is on a local (or mounted) file system, else None."""
        return None if "://" in self.uri else Path(self.uri)

    def child(self, *names: str) -> Location:
        """Return a folder below this one.

        Each name is validated: no separators, no dots in front. Raises `ConfigInvalid`.
        """
        parts = [valid_name("folder", name) for name in names]
        return Location("/".join([self.uri.rstrip("/"), *parts]), self.storage_options, self.root)

    def read_bytes(self, path: str) -> bytes:
        """Return the bytes of a file. Raises FileNotFoundError, a `StoreOutage`."""
        checked = valid_path(path)
        with self._errors(path):
            content = read_object(self.uri, self.storage_options, checked)
            if content is not None:
                return content
            with pafs.PyFileSystem(self.handler()).open_input_file(checked) as stream:
                return cast(bytes, stream.read())

    def write_bytes(self, path: str, data: bytes) -> None:
        """Create or replace a file. It is durable when the call returns. Raises a `StoreOutage`."""
        output = self.open_output(path)
        with output:
            output.write(data)

    def open_output(self, path: str) -> DurableOutput:
        """Open a binary file for writing: invisible under `path` before `close`, durable after it.

        Raises a `StoreOutage`.
        """
        checked = valid_path(path)
        with self._errors(path, writing=True):
            if self.local is not None:
                durable.make_folder((self.local / checked).parent, self.root)
            upload = open_upload(self.uri, self.storage_options, checked)
            stream = upload or self.handler()._handler.open_output_stream(checked)
        return DurableOutput(self, checked, cast(io.RawIOBase, stream))

    def verify(self, file: Committed, **where: object) -> None:
        """Read a file and compare it with its committed record.

        Raises `EpochDamaged` with the context `where`, a `StoreOutage`.
        """
        stream = self._opened_committed(file, where)
        with self._errors(file.path):
            check(file, stream, **where)

    def download(self, file: Committed, target: Path, **where: object) -> None:
        """Copy a committed file to a new local file, and compare the bytes on their way. An error leaves no part of it.

        Raises `EpochDamaged` with the context `where`, a `StoreOutage`.
        """
        stream = self._opened_committed(file, where)
        # Outside of the block that deletes: a file that is there already is another one's.
        with typed_errors_at(str(target)):
            opened = target.open("xb")
        try:
            with typed_errors_at(str(target)), opened as output, self._errors(file.path):
                check(file, _Copied(stream, output), **where)
        except CkptError:
            target.unlink(missing_ok=True)
            raise

    def read_committed(self, file: Committed, rows: int, **where: object) -> pa.Table:
        """Read a committed Parquet file with `rows` rows. Nothing is decoded before all of its bytes are verified.

        Raises `EpochDamaged` with the context `where`, a `StoreOutage`.
        """
        try:
            table = self.read_table(file.path, expected=file)
        except EpochDamaged as error:
            error.context = {**where, "expected": f"{file.size_bytes} bytes", **error.context}
            raise
        return _with_rows(table, rows, file.path, {**where, "location": self.uri})

    def read_range(
        self, part: CommittedRange, rows: int, columns: Sequence[str] | None = None, **where: object
    ) -> pa.Table:
        """Read the range of a committed state file with `rows` rows, in one request; of `columns` those that it has.

        Nothing is decoded before its bytes are verified. Raises `EpochDamaged` with the context `where`, a `StoreOutage`.
        """
        source = None
        try:
            source = _Watched(stream := self.opened(part.path))
            # An object store refuses a read that ends after the file.
            there = max(0, min(part.size_bytes, stream.size() - part.offset))
            source.seek(part.offset if there else 0)
            content = source.read(there)
            check_bytes(part, content, location=self.uri)
            with ranges.opened(content, part.offset) as parquet:
                table = parquet.read(columns)
        except EpochDamaged as error:
            error.context = {**where, "expected": f"{part.size_bytes} bytes at {part.offset}", **error.context}
            raise
        except (pa.ArrowException, OSError, ValueError, KeyError, UnicodeDecodeError) as error:
            raise _reading_failed(self, part.path, source.failure if source else None, error) from error
        return _with_rows(table, rows, part.path, {**where, "location": self.uri})

    def read_table(
        self,
        path: str,
        columns: Sequence[str] | None = None,
        row_groups: Sequence[int] | None = None,
        expected: Committed | None = None,
    ) -> pa.Table:
        """Read a Parquet file with its page checksums verified.

        - `columns`, `row_groups`: the parts to read; None for all.
        - `expected`: the committed record. All bytes are compared with it before anything is decoded.

        Raises `EpochDamaged` if the file is missing or does not hold what was written, a `StoreOutage` otherwise.
        """
        source = _Watched(self.opened(path))
        try:
            # Read whole files into memory first: an Arrow thread that still holds a Python file when the interpreter
            # ends aborts the process.
            whole = source.whole() if row_groups is None or expected is not None else None
            if whole is not None and expected is not None:
                check_bytes(expected, whole, location=self.uri)
            opened = pa.PythonFile(source, mode="r") if whole is None else pa.BufferReader(whole)
            # Arrow checks a page's CRC only on request, and decodes a flipped bit into another value otherwise.
            with pq.ParquetFile(opened, page_checksum_verification=True) as parquet:
                _check_seal(parquet)
                wanted = None if columns is None else list(columns)
                if row_groups is None:
                    return parquet.read(columns=wanted)
                return parquet.read_row_groups(list(row_groups), columns=wanted)
        except (pa.ArrowException, OSError, ValueError, KeyError, UnicodeDecodeError) as error:
            raise _reading_failed(self, path, source.failure, error) from error

    def write_table(self, path: str, table: pa.Table, compression: str = "zstd") -> Written:
        """Write a Parquet file with page checksums. It is durable when the call returns. Return its size and digest.

        It has no dictionaries: keys, hashes and log rows are distinct, and a dictionary would make them larger and
        slower by a third. It has no statistics: readers choose files by those in the table's log.
        """
        seal = _seal(_as_read(table.schema.serialize().to_pybytes()), table.num_rows)
        sealed = table.replace_schema_metadata({**(table.schema.metadata or {}), SEAL: seal})
        whole = pa.BufferOutputStream()  # Parquet writes in dozens of small pieces
        pq.write_table(
            sealed,
            whole,
            compression=compression,
            use_dictionary=False,
            write_statistics=False,
            write_page_checksum=True,
        )
        with self.open_output(path) as output:
            output.write(whole.getvalue())
        return Written(output.tell(), output.sha256)

    def size(self, path: str) -> int | None:
        """Return the file's size in bytes; None if there is no such file."""
        return self.sizes([path]).get(path)

    def list(self, prefix: str = "", after: str = "") -> builtins.list[FileInfo]:
        """Return all files in the folder `prefix` and below it; an empty list if there is no such folder.

        `after`: an object store may leave out names that do not sort after this one.
        """
        if self._missing_folder():
            return []
        with self._errors(prefix):
            # pyarrow's file selector cannot begin at a name.
            later = list_objects(self.uri, self.storage_options, prefix, after) if after else None
            if later is not None:
                return [FileInfo(*each) for each in later]
            selector = pafs.FileSelector(valid_path(prefix) if prefix else "", recursive=True, allow_not_found=True)
            found = pafs.PyFileSystem(self.handler()).get_file_info(selector)
        files = (info for info in found if info.type == pafs.FileType.File)
        return [FileInfo(info.path, info.size, info.mtime_ns // 1_000_000) for info in files]

    def entries(self) -> builtins.list[str]:
        """Return the names of files and folders directly in this folder."""
        return [name for name, _ in self.children()]

    def children(self, prefix: str = "") -> builtins.list[tuple[str, bool]]:
        """Return the names of files and folders directly in the folder `prefix`, each with True for a folder."""
        if self._missing_folder():
            return []
        with self._errors(prefix):
            selector = pafs.FileSelector(valid_path(prefix) if prefix else "", recursive=False, allow_not_found=True)
            found = pafs.PyFileSystem(self.handler()).get_file_info(selector)
        return sorted((info.base_name, info.type == pafs.FileType.Directory) for info in found)

    def sizes(self, paths: Iterable[str]) -> dict[str, int]:
        """Return the sizes in bytes of those of `paths` that exist."""
        wanted = [valid_path(path) for path in paths]
        if self._missing_folder() or not wanted:
            return {}
        # One listing replaces a request per file.
        if self.local is None and len(wanted) > _LIST_RATHER_THAN_ASK:
            return {info.path: info.size_bytes for info in self.list()}
        with self._errors(self.uri):
            found = pafs.PyFileSystem(self.handler()).get_file_info(wanted)
        return {info.path: info.size for info in found if info.type == pafs.FileType.File}

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files. Missing files are ignored. Raises a `StoreOutage`."""
        # Validated here, because paths come from manifests and listings: none may lead out of the folder.
        wanted = [valid_path(path) for path in paths]
        if self._missing_folder():
            return

        def delete(path: str) -> None:
            durable.step("delete", path)
            with self._errors(path), contextlib.suppress(FileNotFoundError):
                self.handler().delete_file(path)

        # In order on a file system: `trim` depends on the oldest commit going first.
        if self.local is not None or len(wanted) < 2:
            for path in wanted:
                delete(path)
            return
        for path in wanted:
            durable.step("delete", path)
        with self._errors(wanted[0]):
            if delete_objects(self.uri, self.storage_options, wanted):
                return
        with ThreadPoolExecutor(_PARALLEL_DELETES) as pool:
            list(pool.map(delete, wanted))

    def opened(self, path: str) -> _Readable:
        """Open a file to read. Raises `EpochDamaged` if it is missing."""
        try:
            checked = valid_path(path)
            with self._errors(path):
                return cast(_Readable, self.handler()._handler.open_input_file(checked))
        except FileNotFoundError as error:
            raise _reading_failed(self, path, None, error) from None

    def _opened_committed(self, file: Committed, where: Mapping[str, object]) -> _Readable:
        try:
            return self.opened(file.path)
        except EpochDamaged:
            raise damaged(file.path, "is missing", **where, expected=f"{file.size_bytes} bytes") from None

    def _missing_folder(self) -> bool:
        with typed_errors_at(self.uri):
            return self.local is not None and not self.local.is_dir()

    def handler(self) -> DeltaStorageHandler:
        """Return deltalake's access to the files here. Raises `FileNotFoundError` if the folder is missing."""
        if self._missing_folder():
            raise FileNotFoundError(f"there is no folder {self.uri}")
        return _handler(self.uri, tuple(sorted(self.storage_options.items())))

    @contextlib.contextmanager
    def _errors(self, path: str, *, writing: bool = False) -> Iterator[None]:
        """Raise errors of the file system as a `StoreOutage`. A missing file stays FileNotFoundError for readers."""
        try:
            yield
        except CkptError:
            raise
        except (OSError, DeltaError, UploadFailed, pa.ArrowException) as error:
            if isinstance(error, FileNotFoundError) and not writing:
                raise
            raise outage(self.uri, error, path=path) from error


class CommittedRange(Committed, Protocol):
    """Record of a part of a file: `size_bytes` and `sha256` are those of the part, which begins at `offset`."""

    @property
    def offset(self) -> int:
        """Number of bytes of the file before the part."""


class _Readable(Protocol):
    def read(self, size: int = -1) -> bytes: ...
    def seek(self, offset: int, whence: int = 0) -> int: ...
    def tell(self) -> int: ...
    def size(self) -> int: ...


class DurableOutput(io.RawIOBase):
    """A file being written. `close` makes it durable and visible. `abort`, or an error inside `with`, removes it."""

    def __init__(self, location: Location, path: str, stream: io.RawIOBase) -> None:
        self._location = location
        self._path = path
        self._stream: io.RawIOBase | None = stream
        self._written = 0
        self._digest = hashlib.sha256()
        self._closing = False

    @property
    def sha256(self) -> str:
        """SHA-256 of the bytes written so far, in hexadecimal; available after `close`, too."""
        return self._digest.hexdigest()

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: object) -> int:
        """Append bytes (any object with the buffer protocol).

        Return their number. Raises ValueError after `close`, a `StoreOutage`.
        """
        if self._stream is None:
            raise ValueError(f"{self._path} is closed")
        content = bytes(cast(bytes, data))
        with self._location._errors(self._path, writing=True):
            self._stream.write(content)
        # Computed from the bytes that are handed over, before any of them can rot on the disk.
        self._digest.update(content)
        self._written += len(content)
        return len(content)

    def tell(self) -> int:
        """Return the number of bytes written so far, after `close`, too."""
        return self._written

    def flush(self) -> None:
        """Do nothing: only `close` makes the file visible."""

    def close(self) -> None:
        """Make the file visible and durable. It then survives a power loss. Raises a `StoreOutage`."""
        if self._stream is None:
            super().close()
            return
        # Before the close: a close that failed is never repeated, see `durable`.
        stream, self._stream, self._closing = self._stream, None, True
        durable.step("put", self._path)
        with self._location._errors(self._path, writing=True):
            stream.close()
            if self._location.local is not None:
                durable.sync_file(self._location.local / self._path)
        super().close()

    def abort(self) -> None:
        """Discard what was written. After `close`, remove the file."""
        # Dropping the stream without closing it removes the part file or aborts the upload. A file that has the path
        # already is an older one: a write that fails must not take it along.
        self._stream = None
        super().close()
        if self._closing:
            self._location.delete([self._path])

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.abort() if kind is not None else self.close()

    def __del__(self) -> None:
        # An output that was never closed must not appear: RawIOBase would call close().
        self._stream = None


@dataclass(frozen=True, slots=True)
class _Copied:
    """A file that is written to another one as it is read."""

    stream: _Readable
    output: io.BufferedWriter

    def read(self, size: int, /) -> bytes:
        content = bytes(self.stream.read(size))
        with typed_errors_at(self.output.name):
            self.output.write(content)
        return content


class _Watched(io.RawIOBase):
    """An input that remembers the store's own failure, to tell a damaged file from an unreachable one."""

    def __init__(self, stream: _Readable) -> None:
        self._stream = stream
        self.failure: OSError | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        try:
            return bytes(self._stream.read(size))
        except OSError as error:
            self.failure = error
            raise

    def whole(self) -> bytes:
        return self.read(self._stream.size())

    def seek(self, offset: int, whence: int = 0) -> int:
        self._stream.seek(offset, whence)
        return self.tell()

    def tell(self) -> int:
        return self._stream.tell()


def _reading_failed(location: Location, path: str, failure: OSError | None, error: Exception) -> CkptError:
    if failure is not None:
        return outage(location.uri, failure, path=path)
    # An unmounted store lacks every file. That is an outage, which a job waits for, and no damage.
    if refusal_in(error) is not None or (isinstance(error, FileNotFoundError) and taken_away(location.local)):
        return outage(location.uri, error, path=path)
    why = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {one_line(error)}"
    return EpochDamaged(
        f"file {path} {why}",
        location=location.uri,
        hint=WAY_OUT,
        file=path,
    )


def _with_rows(table: pa.Table, rows: int, path: str, where: Mapping[str, object]) -> pa.Table:
    if table.num_rows != rows:
        was = f"has {counted(table.num_rows, 'row')}, {counted(rows, 'was', 'were')} committed"
        raise damaged(path, was, **where, expected=counted(rows, "row"))
    return table


def _seal(schema: pa.Schema, rows: int) -> bytes:
    """Return a checksum of what Parquet's page checksums omit: names, types and the number of rows."""
    text = "\n".join([str(rows), *(f"{field.name}:{field.type}" for field in schema)])
    return b"%08x" % zlib.crc32(text.encode())


@functools.lru_cache(maxsize=64)
def _as_read(schema: bytes) -> pa.Schema:
    # Parquet has fewer types than Arrow (no seconds, for one): the seal covers the types that a reader gets back.
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.ipc.read_schema(pa.py_buffer(schema)).empty_table(), buffer)
    return pq.read_schema(pa.BufferReader(buffer.getvalue()))


def _check_seal(parquet: pq.ParquetFile) -> None:
    expected = (parquet.schema_arrow.metadata or {}).get(SEAL)
    if expected is not None and expected != _seal(parquet.schema_arrow, parquet.metadata.num_rows):
        raise ValueError("its footer does not match its seal")
    metadata = parquet.metadata
    # The seal covers the total, but a decoder follows the numbers of the row groups.
    if sum(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)) != metadata.num_rows:
        raise ValueError("its row groups do not add up")


@functools.lru_cache(maxsize=256)
def _handler(uri: str, options: tuple[tuple[str, str], ...]) -> DeltaStorageHandler:
    return DeltaStorageHandler(uri, dict(options))


def _normalised(uri: str) -> str:
    if not uri or "\0" in uri:
        raise ConfigInvalid("a store's location is empty", hint="give a folder or an object-store URL")
    local = local_path(uri)
    return uri.rstrip("/") if local is None else str(local.absolute())


def total_size(files: Collection[FileInfo]) -> int:
    """Return the bytes of all files together."""
    return sum(file.size_bytes for file in files)
