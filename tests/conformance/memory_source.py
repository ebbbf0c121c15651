"""A source whose input is a list, and one faulty class for each common mistake of source authors."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from spark_ckpt.connector import Cursor, Folder
from spark_ckpt.errors import SourceInvalid
from spark_ckpt.testing import PythonReading, SourceSubject

_BATCH = 3


@dataclass
class Input:
    """Rows by their number; a lost row is None."""

    rows: list[int | None] = field(default_factory=list)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    read: list[int] = field(default_factory=list)


INPUTS: dict[str, Input] = {}


class MemoryData(DataSource):
    """Options: `input`, `at`, `limit`."""

    @classmethod
    def name(cls) -> str:
        return "memory"

    def schema(self) -> StructType:
        return StructType([StructField("n", LongType())])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return MemoryReader(self.options["input"], int(self.options["at"]), int(self.options["limit"]))


class MemoryReader(DataSourceStreamReader):
    def __init__(self, name: str, at: int, limit: int) -> None:
        self.name, self.at, self.limit = name, at, limit

    @property
    def rows(self) -> list[int | None]:
        return INPUTS[self.name].rows

    def initialOffset(self) -> dict[str, Any]:
        return {"at": self.at}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else len(self.rows)
        return {"at": min(start["at"] + most, len(self.rows))}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [InputPartition((start["at"], end["at"]))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        first, last = partition.value
        for row in self.rows[first:last]:
            if row is None:
                raise SourceInvalid("a row is gone")
            yield (row,)


class MemorySource:
    """A source that keeps every promise; with a folder it stores the highest cursor there, and lost rows."""

    data: ClassVar[type[DataSource]] = MemoryData

    def __init__(self, name: str, limit: int = _BATCH) -> None:
        self.name = name
        self.limit = limit
        self.folder: Folder | None = None

    @property
    def input(self) -> Input:
        return INPUTS[self.name]

    def check(self, spark: Any) -> None:
        pass

    def start(self, spark: Any) -> Cursor:
        return {"kind": "memory", "at": 0}

    def read(self, spark: Any, cursor: Cursor) -> Any:
        at = self.checked(cursor)
        spark.dataSource.register(self.data)
        reader = spark.readStream.format("memory").option("input", self.name)
        return reader.option("at", at).option("limit", self.limit).load()

    def checked(self, cursor: Cursor) -> int:
        at = cursor.get("at")
        if cursor.get("kind") != "memory" or type(at) is not int or at < 0:
            raise SourceInvalid("not a memory cursor")
        return at

    def cursor(self, offset: str, previous: Cursor) -> Cursor:
        return {"kind": "memory", "at": json.loads(offset)["at"]}

    def end(self, spark: Any) -> Cursor:
        return {"at": len(self.input.rows)}

    def reached(self, cursor: Cursor, end: Cursor) -> bool:
        return int(str(cursor["at"])) >= int(str(end["at"]))

    def describe(self) -> Mapping[str, str]:
        return {"kind": "memory"}

    def identity(self, spark: Any) -> Mapping[str, str]:
        return {"kind": "memory", "id": self.input.id}

    @property
    def rows_per_batch(self) -> int | None:
        return self.limit

    def limited(self, rows: int) -> MemorySource | None:
        return None if self.limit <= rows else type(self)(self.name, rows)


class RememberingSource(MemorySource):
    """A source that keeps every promise, the optional ones too."""

    def remember_in(self, folder: Folder) -> None:
        self.folder = folder

    def check_cursor(self, cursor: Cursor | None, newest: Cursor) -> None:
        first = 0 if cursor is None else int(str(cursor["at"]))
        if None in self.input.rows[first : int(str(newest["at"]))]:
            raise SourceInvalid("a row is gone")

    def release(self, kept: Sequence[Cursor]) -> None:
        oldest = min(int(str(cursor["at"])) for cursor in kept)
        self.input.rows[:oldest] = [None] * oldest


class SkippingSource(MemorySource):
    """A source that can continue behind lost rows."""

    def past_lost(self, spark: Any, cursor: Cursor) -> Cursor:
        first = int(str(cursor["at"]))
        lost = [number for number, row in enumerate(self.input.rows) if row is None and number >= first]
        return {**cursor, "at": lost[-1] + 1} if lost else cursor


def subject(source: type[MemorySource]) -> SourceSubject:
    name = uuid.uuid4().hex
    INPUTS[name] = Input()
    numbers = itertools.count()

    def add() -> list[dict[str, object]]:
        fresh = list(itertools.islice(numbers, 4))
        INPUTS[name].rows += fresh
        return [{"n": number} for number in fresh]

    def lose() -> None:
        INPUTS[name].rows[0] = None

    def renew() -> None:
        INPUTS[name] = Input()

    return SourceSubject(
        make=lambda: source(name), add=add, reading=PythonReading(), lose=lose, renew=renew, secrets=("hunter2",)
    )


# -- faulty sources ----------------------------------------------------------------------------------------------------


class _Data(MemoryData):
    reader: ClassVar[type[MemoryReader]] = MemoryReader

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return self.reader(self.options["input"], int(self.options["at"]), int(self.options["limit"]))


class _LeavesOut(MemoryReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        return itertools.islice(super().read(partition), 1, None)


class _LeavesOutData(_Data):
    reader = _LeavesOut


class LosesTheFirstRowOfABatch(MemorySource):
    data = _LeavesOutData


class _Idle(MemoryReader):
    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        return start


class _IdleData(_Data):
    reader = _Idle


class GivesNoBatch(RememberingSource):
    data = _IdleData


class StartsInclusive(MemorySource):
    """A cursor names the last row read, and reading starts with it."""

    def cursor(self, offset: str, previous: Cursor) -> Cursor:
        return {"kind": "memory", "at": json.loads(offset)["at"] - 1}


class CountsFromItsStart(MemorySource):
    """The cursor is right for the first driver only: it counts only rows that this driver has read."""

    def checked(self, cursor: Cursor) -> int:
        self.base = super().checked(cursor)
        return self.base

    def cursor(self, offset: str, previous: Cursor) -> Cursor:
        return {"kind": "memory", "at": json.loads(offset)["at"] - self.base}


class _Consuming(MemoryReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        seen = INPUTS[self.name].read
        for row in super().read(partition):
            if row[0] not in seen:
                seen.append(row[0])
                yield row


class _ConsumingData(_Data):
    reader = _Consuming


class ForgetsWhatItHasGiven(MemorySource):
    """As a queue: rows disappear when they are read."""

    data = _ConsumingData


class _ToTheNewest(MemoryReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        return super().read(InputPartition((partition.value[0], len(self.rows))))


class _ToTheNewestData(_Data):
    reader = _ToTheNewest


class ReadsToTheNewest(MemorySource):
    """A batch has all rows that exist when it runs."""

    data = _ToTheNewestData


class _Widening(MemoryData):
    def schema(self) -> StructType:
        return StructType([StructField("n", LongType() if self.options["at"] == "0" else IntegerType())])


class ChangesItsColumns(MemorySource):
    data = _Widening


class KnowsOtherColumns(MemorySource):
    def columns(self, spark: Any) -> StructType:
        return StructType([StructField("n", IntegerType())])


class HasNoJson(MemorySource):
    def start(self, spark: Any) -> Cursor:
        return {"kind": "memory", "at": {0}}  # type: ignore[dict-item]


class HasTuples(MemorySource):
    """JSON returns them as lists."""

    def cursor(self, offset: str, previous: Cursor) -> Cursor:
        return {**super().cursor(offset, previous), "range": (0, 1)}


class IsThereFromTheStart(MemorySource):
    def reached(self, cursor: Cursor, end: Cursor) -> bool:
        return True


class NeverArrives(MemorySource):
    def reached(self, cursor: Cursor, end: Cursor) -> bool:
        return int(str(cursor["at"])) > int(str(end["at"]))


class ArrivesThoughEndless(MemorySource):
    @property
    def endless(self) -> str | None:
        return "nobody knows"


class AsksForTheEndOfNow(MemorySource):
    """Compares with the current end, not with the given one."""

    def reached(self, cursor: Cursor, end: Cursor) -> bool:
        return int(str(cursor["at"])) >= len(self.input.rows)


class HasAnEndThatStays(MemorySource):
    def end(self, spark: Any) -> Cursor:
        return {"at": min(4, len(self.input.rows))}


class ComparesForEquality(MemorySource):
    """Does not count a cursor beyond the end as reached."""

    def reached(self, cursor: Cursor, end: Cursor) -> bool:
        return cursor["at"] == end["at"]


class TakesAnyCursor(MemorySource):
    def checked(self, cursor: Cursor) -> int:
        at = cursor.get("at")
        return at if isinstance(at, int) else 0


class StumblesOverItsCursor(MemorySource):
    """Raises a KeyError or a TypeError, not an error for an operator."""

    def checked(self, cursor: Cursor) -> int:
        return int(cursor["at"])  # type: ignore[arg-type]


class _Skipping(MemoryReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        first, last = partition.value
        return iter([(row,) for row in self.rows[first:last] if row is not None])


class _SkippingData(_Data):
    reader = _Skipping


class SkipsWhatIsGone(MemorySource):
    data = _SkippingData


class ChecksNoCursor(RememberingSource):
    def check_cursor(self, cursor: Cursor | None, newest: Cursor) -> None:
        pass


class ChecksTooMuch(RememberingSource):
    def check_cursor(self, cursor: Cursor | None, newest: Cursor) -> None:
        if cursor != newest:
            raise SourceInvalid("only the newest can be read on")


class WritesWhenItChecks(RememberingSource):
    def check_cursor(self, cursor: Cursor | None, newest: Cursor) -> None:
        assert self.folder is not None
        self.folder.write_bytes("checked", b"")


class WritesItsMemory(RememberingSource):
    """Has a file in the folder for every cursor, and needs it to continue."""

    def cursor(self, offset: str, previous: Cursor) -> Cursor:
        found = super().cursor(offset, previous)
        assert self.folder is not None
        self.folder.write_bytes(f"at-{found['at']}", b"read")
        return found

    def read(self, spark: Any, cursor: Cursor) -> Any:
        assert self.folder is not None
        frame = super().read(spark, cursor)
        if (error := _damage(self.folder, cursor)) is not None:
            raise error
        return frame

    def limited(self, rows: int) -> MemorySource | None:
        return None

    @classmethod
    def memory_damage(cls, folder: Folder, cursors: Sequence[Cursor]) -> Sequence[SourceInvalid | None]:
        return [_damage(folder, cursor) for cursor in cursors]


def _damage(folder: Folder, cursor: Cursor) -> SourceInvalid | None:
    name = f"at-{cursor['at']}"
    there = name == "at-0" or (name in folder.entries() and folder.read_bytes(name) == b"read")
    return None if there else SourceInvalid("what was read is not known")


class FindsNoDamage(WritesItsMemory):
    @classmethod
    def memory_damage(cls, folder: Folder, cursors: Sequence[Cursor]) -> Sequence[SourceInvalid | None]:
        return [None for _ in cursors]


class FindsDamageInTheWhole(WritesItsMemory):
    @classmethod
    def memory_damage(cls, folder: Folder, cursors: Sequence[Cursor]) -> Sequence[SourceInvalid | None]:
        return [SourceInvalid("damaged") for _ in cursors]


class FindsDamageWithSizesOnly(WritesItsMemory):
    """Does not find a truncated file."""

    @classmethod
    def memory_damage(cls, folder: Folder, cursors: Sequence[Cursor]) -> Sequence[SourceInvalid | None]:
        return [
            None if f"at-{cursor['at']}" in ("at-0", *folder.entries()) else SourceInvalid("gone") for cursor in cursors
        ]


class ReleasesWhatIsKept(RememberingSource):
    """Takes the newest kept cursor for the oldest."""

    def release(self, kept: Sequence[Cursor]) -> None:
        super().release([max(kept, key=lambda cursor: int(str(cursor["at"])))])


class StaysBeforeTheLoss(SkippingSource):
    def past_lost(self, spark: Any, cursor: Cursor) -> Cursor:
        return cursor


class SkipsMoreEachTime(SkippingSource):
    def past_lost(self, spark: Any, cursor: Cursor) -> Cursor:
        return {**cursor, "at": int(str(cursor["at"])) + 1}


class SkipsRowsThatAreYetToCome(SkippingSource):
    def past_lost(self, spark: Any, cursor: Cursor) -> Cursor:
        past = super().past_lost(spark, cursor)
        return past if past == cursor else {**past, "at": len(self.input.rows) + 1}


class SkipsToTheEnd(SkippingSource):
    def past_lost(self, spark: Any, cursor: Cursor) -> Cursor:
        past = super().past_lost(spark, cursor)
        return past if past == cursor else {**past, "at": len(self.input.rows)}


class ShowsItsPassword(MemorySource):
    def describe(self) -> Mapping[str, str]:
        return {"kind": "memory", "url": "memory://ada:hunter2@host"}


class IsAnotherOneWithEveryRow(MemorySource):
    def identity(self, spark: Any) -> Mapping[str, str]:
        return {"kind": "memory", "id": str(len(self.input.rows))}


class IsKnownByItsNameOnly(MemorySource):
    def identity(self, spark: Any) -> Mapping[str, str]:
        return {"kind": "memory"}


class RemembersItsIdentity(MemorySource):
    """Reads its identity once, as from a connection's metadata, and never again."""

    known: Mapping[str, str] | None = None

    def identity(self, spark: Any) -> Mapping[str, str]:
        if self.known is None:
            self.known = super().identity(spark)
        return self.known


class LimitsNothing(MemorySource):
    def read(self, spark: Any, cursor: Cursor) -> Any:
        return MemorySource(self.name).read(spark, cursor)


class LimitsForGood(MemorySource):
    """Can be limited repeatedly."""

    def limited(self, rows: int) -> MemorySource | None:
        return type(self)(self.name, rows)
