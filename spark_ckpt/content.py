"""Verification that a file still holds the bytes that were committed.

A manifest has every file's size and SHA-256, computed while the writer's bytes streamed out. A reader compares them
before it publishes a file or builds on it. Files are read in blocks, so that memory is bounded for any size.
"""

from __future__ import annotations

import hashlib
import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from spark_ckpt.errors import EpochDamaged
from spark_ckpt.storage_errors import outage
from spark_ckpt.wording import counted

BLOCK_BYTES = 1 << 20
WAY_OUT = (
    "bring the file back from a backup; or choose a whole epoch (spark-ckpt verify STORE --deep), see what going back to "
    "it repeats (spark-ckpt restore STORE EPOCH), and do it: job.start(restore=EPOCH)"
)


class Committed(Protocol):
    """Record of a file in a manifest. With an empty `sha256`, only the size is known."""

    @property
    def path(self) -> str:
        """Path relative to the folder that the manifest names."""

    @property
    def size_bytes(self) -> int:
        """Size of the whole file."""

    @property
    def sha256(self) -> str:
        """SHA-256 of the whole file, in hexadecimal."""


class Readable(Protocol):
    """An open file, read from its beginning."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; none at the end."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A file that held the committed bytes when it was read.

    It has the bytes, or a checksum of each block for another read.
    """

    path: str
    size_bytes: int
    whole: bytes | None
    blocks: tuple[int, ...] = ()

    def source(self, reopen: Callable[[], pa.NativeFile]) -> pa.NativeFile:
        """Return the verified bytes for a decoder.

        Reading raises `EpochDamaged` if a block has changed since, a `StoreOutage` if it cannot be read.
        """
        if self.whole is not None:
            return pa.BufferReader(self.whole)
        return pa.PythonFile(_VerifiedBlocks(reopen(), self), mode="r")


def damaged(path: str, was: str, **where: object) -> EpochDamaged:
    """Return the error for a file that is not what was committed. `where`: epoch, sink or operator, location, ..."""
    return EpochDamaged(f"file {path} {was}", hint=WAY_OUT, file=path, **where)


def check_size(file: Committed, found: int | None, **where: object) -> None:
    """Raise `EpochDamaged` unless the file exists with its size. `found`: the size in bytes, None if there is no file."""
    if found is None:
        raise damaged(file.path, "is missing", **where, expected=f"{file.size_bytes} bytes")
    if found != file.size_bytes:
        was = f"has {counted(found, 'byte')}, {counted(file.size_bytes, 'was', 'were')} committed"
        raise damaged(file.path, was, **where, expected=f"{file.size_bytes} bytes", found=f"{found} bytes")


def check_bytes(file: Committed, content: bytes | memoryview, **where: object) -> None:
    """Raise `EpochDamaged` unless `content` is what was committed."""
    _compare(file, len(content), hashlib.sha256(content).hexdigest() if file.sha256 else "", where)


def check(file: Committed, stream: Readable, **where: object) -> None:
    """Read a file to its end. Raise `EpochDamaged` unless it is what was committed."""
    digest, size = hashlib.sha256(), 0
    for block in _blocks(stream):
        digest.update(block)
        size += len(block)
    _compare(file, size, digest.hexdigest() if file.sha256 else "", where)  # without a digest: the size


def verified(
    file: Committed,
    stream: Readable,
    where: Mapping[str, object],
    *,
    keep: bool,
    progress: Callable[[], None] = lambda: None,
) -> Verified:
    """Read a file to its end and compare it. `keep` its bytes, or only block checksums to recognise them again.

    `progress` is called for each block. Raises `EpochDamaged`.
    """
    digest, size, kept, blocks = hashlib.sha256(), 0, [], []
    for block in _blocks(stream):
        digest.update(block)
        size += len(block)
        # 4 bytes for each MiB: enough to recognise the block at the second reading, after SHA-256 has proved the first.
        blocks.append(zlib.crc32(block))
        if keep:
            kept.append(block)
        progress()
    _compare(file, size, digest.hexdigest() if file.sha256 else "", where)
    return Verified(file.path, size, b"".join(kept) if keep else None, tuple(blocks))


def _blocks(stream: Readable) -> Iterator[bytes]:
    """Yield blocks of `BLOCK_BYTES`. Only the last one is shorter, even if a read returns less than requested."""
    rest = b""
    while more := stream.read(BLOCK_BYTES - len(rest)):
        rest += more
        if len(rest) == BLOCK_BYTES:
            yield rest
            rest = b""
    if rest:
        yield rest


def _compare(file: Committed, size: int, sha256: str, where: Mapping[str, object]) -> None:
    # The size first: its message tells a truncated file from a changed one.
    check_size(file, size, **where)
    if sha256 != file.sha256:
        raise damaged(
            file.path,
            "does not hold the bytes that were committed",
            **where,
            expected=f"sha256 {file.sha256}",
            found=f"sha256 {sha256}",
        )


class _VerifiedBlocks(io.RawIOBase):
    """A second read of a verified file, which returns only blocks with the checksums of the first read."""

    def __init__(self, stream: pa.NativeFile, verified: Verified) -> None:
        self._stream = stream
        self._verified = verified
        self._position = 0
        self._block: tuple[int, bytes] = (-1, b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._verified.size_bytes}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        end = self._verified.size_bytes
        last = end if size < 0 else min(end, self._position + size)
        parts = []
        while self._position < last:
            number, start = divmod(self._position, BLOCK_BYTES)
            part = self._block_of(number)[start : start + last - self._position]
            parts.append(part)
            self._position += len(part)
        return b"".join(parts)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()

    def _block_of(self, number: int) -> bytes:
        if self._block[0] != number:
            try:
                self._stream.seek(number * BLOCK_BYTES)
                block = self._stream.read(min(BLOCK_BYTES, self._verified.size_bytes - number * BLOCK_BYTES))
            except OSError as error:
                raise outage(self._verified.path, error) from error
            # The SHA-256 of the first read proves the content. A checksum per block finds later changes without
            # another full read.
            if zlib.crc32(block) != self._verified.blocks[number]:
                raise damaged(self._verified.path, "changed after it was verified", block=number)
            self._block = (number, block)
        return self._block[1]
