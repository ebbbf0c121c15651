"""A small model of Spark and its Delta source and sink on checkpoints and Delta tables, without a JVM.

Written after Spark's and Delta's sources (`MicroBatchExecution.populateStartOffsets`, `HDFSMetadataLog`, `FileStreamSourceLog`,
`DeltaSource.getFileChanges`, `DeltaSink`). It shares no code with the code that it judges, so formats are repeated here.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

FOLD = 4
"""Number of entries after which a file source's log is compacted."""
SCHEMA = json.dumps({"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]})


class Refused(RuntimeError):
    """The query does not start, or stops before its batch: a log is malformed, or a name in it exists already."""


class SourceChanged(RuntimeError):
    """A Delta source found a version that removes rows."""


class StateMissing(RuntimeError):
    """A file of a state store is missing."""


class Died(RuntimeError):
    """The process was killed at this point."""


@dataclass
class SmallTable:
    """A Delta table of one column, `id`."""

    root: Path

    @property
    def log(self) -> Path:
        return self.root / "_delta_log"

    def newest(self) -> int:
        if not self.log.is_dir():
            return -1
        names = os.listdir(self.log)  # noqa: PTH208 - asked for ten thousands of times
        return max((int(name[:-5]) for name in names if name.endswith(".json")), default=-1)

    def actions(self, version: int) -> list[dict]:
        return _actions(*_as_it_is(f"{self.log}/{version:020d}.json"))

    def append(self, files: list[list[int]], txn: tuple[str, int] | None = None, removed: tuple[str, ...] = ()) -> None:
        """Append one version, with a file for each list. The first version creates the table."""
        version = self.newest() + 1
        self.log.mkdir(parents=True, exist_ok=True)
        actions: list[dict] = [{"commitInfo": {"timestamp": version, "operation": "STREAMING UPDATE"}}]
        if version == 0:
            form = {"provider": "parquet", "options": {}}
            metadata = {
                "id": str(uuid.uuid5(uuid.NAMESPACE_OID, self.root.name)),
                "format": form,
                "schemaString": SCHEMA,
            }
            actions.append({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}})
            actions.append({"metaData": metadata | {"partitionColumns": [], "configuration": {}, "createdTime": 0}})
        if txn is not None:
            actions.append({"txn": {"appId": txn[0], "version": txn[1], "lastUpdated": version}})
        for ids in files:
            name = f"part-{uuid.uuid4()}.parquet"
            pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), self.root / name)
            size = (self.root / name).stat().st_size
            add = {"path": name, "partitionValues": {}, "size": size, "modificationTime": version, "dataChange": True}
            actions.append({"add": add})
        actions += [{"remove": {"path": name, "dataChange": True, "deletionTimestamp": version}} for name in removed]
        text = "".join(json.dumps(each) + "\n" for each in actions)
        with (self.log / f"{version:020d}.json").open("x") as file:
            file.write(text)

    def transaction(self, app: str) -> int:
        found = -1
        for version in range(self.newest() + 1):
            for each in self.actions(version):
                if "txn" in each and each["txn"]["appId"] == app:
                    found = each["txn"]["version"]
        return found

    def files(self, version: int) -> list[str]:
        """Files of the table as of a version, in the order in which a stream reads them at its start."""
        held: dict[str, tuple[int, str]] = {}
        for number in range(version + 1):
            for each in self.actions(number):
                if "remove" in each:
                    held.pop(each["remove"]["path"], None)
            for each in self.actions(number):
                if "add" in each:
                    held[each["add"]["path"]] = (each["add"]["modificationTime"], each["add"]["path"])
        return [path for _, path in sorted(held.values())]

    def rows(self, paths: list[str]) -> list[int]:
        return [each for path in paths for each in _ids(*_as_it_is(f"{self.root}/{path}"))]

    def ids(self) -> list[int]:
        return sorted(self.rows(self.files(self.newest())))

    @property
    def id(self) -> str:
        return next(each["metaData"]["id"] for each in self.actions(0) if "metaData" in each)


def _as_it_is(path: str) -> tuple[str, int, int, int]:
    """The path with size and times, which distinguish this file from another with its name: every batch reads the whole log."""
    found = os.stat(path)  # noqa: PTH116 - as above
    return path, found.st_ino, found.st_mtime_ns, found.st_size


@lru_cache(maxsize=4096)
def _actions(path: str, *_: int) -> list[dict]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@lru_cache(maxsize=4096)
def _ids(path: str, *_: int) -> list[int]:
    return pq.read_table(path).column("id").to_pylist()


Place = tuple[int, int, bool]
"""Version, index, and a flag for files that are in the table as of that version."""


@dataclass
class DeltaStream:
    """A Delta source with at most `most` files a batch."""

    table: SmallTable
    most: int

    def next_end(self, folder: Path, start: Place | None, written: str | None) -> str | None:
        begin = start or (self.table.newest(), -1, True)
        if begin[0] < 0:
            return None
        end = begin if start is not None else None
        left = self.most
        for version, index, path, snapshot in self._changes(begin, None):
            if path is not None:
                if not left:
                    break
                left -= 1
            end = (version, index, snapshot)
        return None if end is None else self._text(end, written)

    def _text(self, end: Place, written: str | None) -> str:
        value = {"sourceVersion": 1, "reservoirId": self.table.id, "reservoirVersion": end[0], "index": end[1]}
        return json.dumps(value | {"isStartingVersion": end[2]}, separators=(",", ":"))

    def rows(self, folder: Path, start: str | None, end: str) -> list[int]:
        if start == end:
            return []
        last = self.place(end)
        begin = self.place(start) if start is not None else (last[0] if last[2] else last[0] - 1, -1, True)
        return self.table.rows([path for _, _, path, _ in self._changes(begin, last) if path is not None])

    def place(self, text: str) -> Place:
        value = json.loads(text)
        assert value["reservoirId"] == self.table.id
        return value["reservoirVersion"], value["index"], value["isStartingVersion"]

    def _changes(self, begin: Place, end: Place | None) -> Iterator[tuple[int, int, str | None, bool]]:
        """Files after a place; the end of each version is the beginning of the next."""
        version, index, snapshot = begin
        if snapshot:
            for number, path in enumerate(self.table.files(version)):
                if number > index and _within(version, number, end):
                    yield version, number, path, True
            if not _within(version + 1, -1, end):
                return
            yield version + 1, -1, None, False
            version, index = version + 1, -1
        for number in range(version, self.table.newest() + 1):
            if end is not None and (number, -1) >= end[:2]:
                return
            actions = self.table.actions(number)
            if any(each["remove"]["dataChange"] for each in actions if "remove" in each):
                raise SourceChanged(f"version {number} of {self.table.root} removes rows")
            added = [each["add"]["path"] for each in actions if "add" in each and each["add"]["dataChange"]]
            for at, path in enumerate(added):
                if (number, at) > (version, index) and _within(number, at, end):
                    yield number, at, path, False
            if _within(number + 1, -1, end):
                yield number + 1, -1, None, False


def _within(version: int, index: int, end: Place | None) -> bool:
    return end is None or (version, index) <= end[:2]


@dataclass
class FoldedLog:
    """A log of files: one entry file a batch, compacted every few batches. `keeps`: number of batches that stay."""

    folder: Path
    keeps: int = FOLD

    def newest(self) -> int:
        return max(map(_number, self._names()), default=-1) if self.folder.is_dir() else -1

    def add(self, number: int, entries: list[dict]) -> None:
        fold = (number + 1) % self._interval() == 0
        kept = [*self.all(number - 1), *entries] if fold else entries
        name = f"{number}.compact" if fold else f"{number}"
        part = self.folder / f".{name}.tmp"
        part.write_text("\n".join(["v1", *map(json.dumps, kept)]))
        part.rename(self.folder / name)
        if fold:
            for each in self._names():
                if _number(each) < number - self.keeps:
                    (self.folder / each).unlink()

    def _names(self) -> list[str]:
        return [path.name for path in self.folder.iterdir() if path.name[0] != "."]

    def _interval(self) -> int:
        folded = sorted(_number(name) for name in self._names() if name.endswith(".compact"))
        if len(folded) >= 2:
            return folded[-1] - folded[-2]
        if not folded:
            return FOLD
        newest = folded[0] + 1
        if newest <= FOLD:
            return newest
        return (
            next((each for each in range(FOLD, newest // 2 + 1) if newest % each == 0), newest)
            if newest // 2 > FOLD
            else newest
        )

    def all(self, newest: int) -> list[dict]:
        if newest < 0:
            return []
        interval = self._interval()
        first = max(0, (newest + 1) // interval * interval - 1)
        return [entry for number in range(first, newest + 1) for entry in self._read(number, interval)]

    def _read(self, number: int, interval: int) -> list[dict]:
        name = f"{number}.compact" if (number + 1) % interval == 0 else f"{number}"
        version, *lines = (self.folder / name).read_text().split("\n")
        assert version == "v1"
        return [json.loads(line) for line in lines]


@dataclass
class FileStream:
    """A file source with one JSON list of ids a file, at most `most` files a batch, and a log. A file sink's log wins."""

    inbox: Path
    most: int

    def next_end(self, folder: Path, start: int | None, written: str | None) -> str | None:
        log = FoldedLog(folder / "sources" / "0")
        log.folder.mkdir(parents=True, exist_ok=True)
        newest = log.newest()
        seen = {each["path"] for each in log.all(newest)}
        new = [each for each in self._there() if each not in seen]
        if new:
            newest += 1
            log.add(newest, [{"path": each, "timestamp": 0, "batchId": newest} for each in new[: self.most]])
        return None if newest < 0 else json.dumps({"logOffset": newest}, separators=(",", ":"))

    def _there(self) -> list[str]:
        written = FoldedLog(self.inbox / "_spark_metadata")
        if written.folder.is_dir():
            return [each["path"] for each in written.all(written.newest())]
        return [path.as_uri() for path in sorted(self.inbox.glob("[0-9]*"), key=lambda path: int(path.stem))]

    def rows(self, folder: Path, start: str | None, end: str) -> list[int]:
        first = json.loads(start)["logOffset"] if start is not None else -1
        last = json.loads(end)["logOffset"]
        entries = {entry["path"]: entry["batchId"] for entry in FoldedLog(folder / "sources" / "0").all(last)}
        paths = [path for path, batch in entries.items() if first < batch <= last]
        return [each for path in paths for each in json.loads(_local(path).read_text())]

    def place(self, text: str) -> int:
        return int(json.loads(text)["logOffset"])


def _local(uri: str) -> Path:
    return Path(unquote(uri.removeprefix("file://")))


def _number(name: str) -> int:
    return int(name.removesuffix(".compact"))


@dataclass
class SmallFolder:
    """Output of a file sink: files with a JSON list of ids each, and the log of the valid ones."""

    root: Path

    @property
    def log(self) -> FoldedLog:
        return FoldedLog(self.root / "_spark_metadata", keeps=100)

    def newest(self) -> int:
        return self.log.newest()

    def transaction(self, app: str) -> int:
        return self.newest()

    def append(self, files: list[list[int]], txn: tuple[str, int]) -> None:
        self.log.folder.mkdir(parents=True, exist_ok=True)
        entries = []
        for number, ids in enumerate(files):
            path = self.root / f"part=%3A{number}" / f"{uuid.uuid4()}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(ids))
            entries.append({"path": path.as_uri(), "size": 1, "isDir": False, "modificationTime": 0, "action": "add"})
        self.log.add(txn[1], entries)

    def ids(self) -> list[int]:
        """Ids by the log. Raises FileNotFoundError for a listed file that is missing."""
        paths = [_local(each["path"]) for each in self.log.all(self.newest())]
        return sorted(each for path in paths for each in json.loads(path.read_text()))

    def ids_without_log(self) -> list[int]:
        """Ids for a reader that lists folders and skips hidden ones."""
        return sorted(each for path in self.root.glob("part=*/*.json") for each in json.loads(path.read_text()))


@dataclass
class SmallQuery:
    """One query, from its source to its table. `code`: maps the rows of a batch and the known ids to output rows.

    `state`: True if it keeps the ids of its output. `files`: number of files that a batch writes.
    """

    name: str
    folder: Path
    source: DeltaStream | FileStream
    sink: SmallTable | SmallFolder
    code: Callable[[list[int], set[int]], list[int]]
    state: bool = False
    files: int = 2
    query: str = field(init=False)

    def __post_init__(self) -> None:
        self.query = str(uuid.uuid5(uuid.NAMESPACE_URL, self.name))

    def run(self, batches: int = 1_000_000, die: str = "") -> int:
        """Run that many batches, or all; return their number. `die`: "offsets", "state" or "sink", in the last batch."""
        number, again = self.start()
        for count in range(batches):
            last = die if count == batches - 1 else ""
            if not self._batch(number, again, last):
                return count
            number, again = number + 1, False
        return batches

    def start(self) -> tuple[int, bool]:
        """The next batch, and True if it has begun already. Raises `Refused`."""
        for name in ("offsets", "commits"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        if not (self.folder / "metadata").exists():
            (self.folder / "metadata").write_text(json.dumps({"id": self.query}))
        self.query = json.loads((self.folder / "metadata").read_text())["id"]
        newest = self._newest("offsets")
        if newest < 0:
            if self.state and (self.folder / "state").exists() and any((self.folder / "state").rglob("*.delta")):
                raise Refused("the folder of the state is not empty")
            return 0, False
        end = self._ends(newest)
        before = self._ends(newest - 1) if newest else None
        done = self._newest("commits")
        if done >= 0:
            self._parse("commits", done)
        if done == newest:
            self.source.rows(self.folder, before, end)  # Spark reads the last batch again and drops it
        return (newest + 1, False) if done == newest else (newest, True)

    def _newest(self, log: str) -> int:
        found = [path.name for path in (self.folder / log).iterdir() if path.name.isdecimal()]
        return max(map(int, found), default=-1)

    def _parse(self, log: str, number: int) -> list[str]:
        path = self.folder / log / str(number)
        if not path.exists():
            raise Refused(f"batch {number} doesn't exist in {log}")
        lines = path.read_text().split("\n")
        if not lines[0].startswith("v"):
            raise Refused(f"log file was malformed: {lines[0]}")
        return lines

    def _ends(self, number: int) -> str:
        return self._parse("offsets", number)[2]

    def _batch(self, number: int, again: bool, die: str) -> bool:
        before = self._ends(number - 1) if number else None
        if again:
            end = self._ends(number)
        else:
            found = self.source.next_end(self.folder, self.source.place(before) if before else None, before)  # type: ignore[arg-type]
            if found is None or found == before:
                return False
            end = found
            metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": number + 1, "conf": {}})
            self._log("offsets", number, "\n".join(["v1", metadata, end]))
        if die == "offsets":
            raise Died(die)
        rows = self.source.rows(self.folder, before, end)
        known = self._load(number) if self.state else set()
        out = self.code(rows, known)
        if self.state:
            self._save(number + 1, set(out))
        if die == "state":
            raise Died(die)
        if self.sink.newest() < 0 or self.sink.transaction(self.query) < number:
            parts = [out[part :: self.files] for part in range(self.files)]
            self.sink.append([each for each in parts if each], (self.query, number))
        if die == "sink":
            raise Died(die)
        self._log("commits", number, 'v1\n{"nextBatchWatermarkMs":0}')
        return True

    def _log(self, log: str, number: int, text: str) -> None:
        path = self.folder / log / str(number)
        if path.exists():
            raise Refused(f"{path} is taken: multiple queries use this checkpoint")
        part = path.with_name(f".{number}.{uuid.uuid4()}.tmp")
        part.write_text(text)
        part.rename(path)

    def _load(self, version: int) -> set[int]:
        """The state after `version` batches: the newest snapshot and the later changes, of both partitions."""
        found: set[int] = set()
        for partition in ("0", "1") if version else ():
            store = self.folder / "state" / "0" / partition
            snapshot = max((each for each in range(1, version + 1) if (store / f"{each}.snapshot").exists()), default=0)
            names = [f"{snapshot}.snapshot"] if snapshot else []
            names += [f"{each}.delta" for each in range(snapshot + 1, version + 1)]
            if missing := [name for name in names if not (store / name).exists()]:
                raise StateMissing(f"{store}: {', '.join(missing)}")
            found |= {each for name in names for each in json.loads((store / name).read_text())}
        return found

    def _save(self, version: int, new: set[int]) -> None:
        whole = self._load(version - 1) | new
        for partition in range(2):
            store = self.folder / "state" / "0" / str(partition)
            store.mkdir(parents=True, exist_ok=True)
            self._replace(store / f"{version}.delta", [each for each in new if each % 2 == partition])
            if version % 3 == 0:
                self._replace(store / f"{version}.snapshot", [each for each in whole if each % 2 == partition])

    def _replace(self, path: Path, ids: list[int]) -> None:
        part = path.with_name(f".{path.name}.tmp")
        part.write_text(json.dumps(ids))
        part.replace(path)
