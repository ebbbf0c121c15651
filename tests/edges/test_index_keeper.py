"""An aligned stage reads its senders' logs when its own positions move, and keeps the logs open.

The period is an hour, so all reads here happen because positions moved.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from line_kit import ProgramKit
from sender_store import EDGE, SendingStore

import spark_ckpt as ckpt
from spark_ckpt.connector import Cursor
from spark_ckpt.coordination.messages import Event
from spark_ckpt.coordination.protocol import EpochProtocol
from spark_ckpt.coordination.stage_process import Between, LogsRead
from spark_ckpt.driver import index_keeper
from spark_ckpt.driver.coordinator import CoordinatorLoop, Rules
from spark_ckpt.driver.index_keeper import IndexKeeper
from spark_ckpt.driver.job_plan import JobPlan
from spark_ckpt.program_edges.following import EdgeLog
from spark_ckpt.program_edges.source import EdgeSource

ENOUGH_S = 60.0


@dataclass
class Looks:
    """Rules and loop of a stage for the keeper, with the events that it passed to the rules, in order."""

    reached: list[int] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def post(self, call: Callable[[], None]) -> None:
        call()

    def handle(self, event: Event, now_ms: int) -> list[object]:
        if isinstance(event, LogsRead):
            with self.changed:
                self.reached.append(event.arriving)
                self.changed.notify_all()
        return []

    def wait_for(self, reached: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: reached in self.reached, ENOUGH_S), f"it passed {self.reached}"


@dataclass
class Reader:
    """An aligned stage after a sender that has announced its first index. `opened`: the sender's log, once per open."""

    sender: SendingStore
    looks: Looks
    keeper: IndexKeeper
    cursors: dict[str, Cursor]
    source: EdgeSource
    opened: list[EdgeLog]
    failed: list[BaseException]

    def read_all(self) -> None:
        self.cursors["in"] = EdgeLog(self.sender.store, EDGE).end().model_dump()

    def say(self, index: int) -> None:
        """Commit an epoch of the sender that serves an index."""
        epoch = self.sender.commit(self.sender.rows(1))
        self.sender.store.log.say_index(self.sender.store.log.state().incarnation, epoch, index)


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.setattr(index_keeper, "LOOK_S", 3600.0)
    sender, own, looks, opened = SendingStore(tmp_path / "orders"), ProgramKit(tmp_path, "reader"), Looks(), []
    source = cast(EdgeSource, ckpt.Edge(EDGE, sender.store.location.uri))
    failed: list[BaseException] = []
    real = EdgeSource.open_log

    def counted(self: EdgeSource) -> EdgeLog:
        opened.append(real(self))
        return opened[-1]

    cursors: dict[str, Cursor] = {"in": EdgeLog(sender.store, EDGE).beginning().model_dump()}
    cut = SimpleNamespace(base=SimpleNamespace(cursors={}), cursors=cursors, is_idle=False)
    plan = SimpleNamespace(
        sources=[SimpleNamespace(name="in", source=source)], between=Between.ALIGNED,
        stage_stores=(own.store, sender.store), store=own.store,
    )  # fmt: skip
    keeper = IndexKeeper(
        cast(JobPlan, plan),
        1,
        cast(Rules, looks),
        cast(EpochProtocol, SimpleNamespace(cut=cut, open_epoch=None)),
        cast(CoordinatorLoop, looks),
        lambda served, released: None,
        failed.append,
    )
    made = Reader(sender, looks, keeper, cursors, source, opened, failed)
    made.say(1)
    monkeypatch.setattr(EdgeSource, "open_log", counted)
    monkeypatch.setattr(EdgeSource, "joins_stages", True)
    keeper.start()
    yield made
    keeper.close()
    keeper.join(ENOUGH_S)


def test_a_stage_that_has_read_rows_reads_the_logs_at_once(reader: Reader) -> None:
    reader.read_all()
    reader.keeper.positions_moved()
    reader.looks.wait_for(1)


def test_each_index_is_read_from_the_first_opened_log(reader: Reader) -> None:
    for index in (2, 3):
        reader.say(index)
        reader.read_all()
        reader.keeper.positions_moved()
        reader.looks.wait_for(index)
    assert len(reader.opened) == 1


def test_an_unexpected_error_ends_the_incarnation_and_not_only_its_lines(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = ValueError("a bug")

    def breaks(keeper: IndexKeeper, name: str) -> EdgeLog:
        raise broken

    monkeypatch.setattr(IndexKeeper, "log_of", breaks)
    reader.keeper.positions_moved()
    reader.keeper.join(ENOUGH_S)
    assert reader.failed == [broken]


# -- planted bugs: each is found by a verdict above -----------------------------------------------------------------------


def never(self: IndexKeeper) -> None: ...


def test_a_keeper_that_waits_for_its_period_is_found(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IndexKeeper, "positions_moved", never)
    monkeypatch.setattr(f"{__name__}.ENOUGH_S", 2.0)
    with pytest.raises(AssertionError, match="it passed"):
        test_a_stage_that_has_read_rows_reads_the_logs_at_once(reader)


def test_a_log_that_is_opened_for_each_read_is_found(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IndexKeeper, "log_of", lambda self, name: reader.source.open_log())
    with pytest.raises(AssertionError):
        test_each_index_is_read_from_the_first_opened_log(reader)
