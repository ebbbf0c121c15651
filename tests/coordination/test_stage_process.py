"""The protocol between programs: forced epochs, admitted segments, announced indices, next to a program's own epochs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from checkpoint_protocols.checkpoints.index_based import IndexWorker
from checkpoint_protocols.graph import Graph, channel_between
from checkpoint_protocols.ids import Incarnation, ProcessId
from checkpoint_protocols.recovery import Birth, ProtocolSettings
from checkpoint_protocols.vocabulary import CaptureState, Commanded, Deliver, Envelope, Received, Stored, StoreRecord
from spark_ckpt.coordination.stage_process import (
    Between,
    EpochEnding,
    EpochServes,
    LogsRead,
    ReleaseEpochs,
    SayIndex,
    StageProcess,
    StampEpoch,
    TakeEpoch,
)
from spark_ckpt.driver.index_keeper import check_index
from spark_ckpt.errors import GraphInvalid
from spark_ckpt.program_edges.edge import Edge

EVERY_MS = 10_000


def indexed(epoch: int = 3, index: int = 40) -> StageProcess:
    return StageProcess(Between.INDEX, EVERY_MS, epoch, index)


def test_an_independent_program_forces_no_epoch_and_admits_every_segment() -> None:
    stage = StageProcess(Between.INDEPENDENT, EVERY_MS, 3)
    stage.heard(99)
    assert stage.wanted(10**9, idle=False) is None
    assert stage.lets_in(99)
    assert stage.index_of_epoch(10**9) == 0


def test_a_segment_of_a_later_index_waits_for_an_epoch_of_that_index() -> None:
    stage = indexed()
    assert stage.lets_in(40) and not stage.lets_in(50)
    stage.heard(50)
    assert stage.wanted(40_000, idle=False) == TakeEpoch(50)
    assert not stage.lets_in(50), "a requested epoch is not committed"
    stage.committed(4, stage.index_of_epoch(40_000))
    assert stage.lets_in(50)


def test_the_clock_requests_one_epoch_per_interval() -> None:
    stage = indexed()
    assert stage.wanted(49_999, idle=False) is None
    assert stage.wanted(50_000, idle=False) == TakeEpoch(50)
    assert stage.wanted(55_000, idle=False) is None


def test_an_idle_program_announces_its_index_and_takes_no_epoch() -> None:
    assert indexed().wanted(70_000, idle=True) == SayIndex(3, 70)


def test_a_program_without_an_epoch_announces_no_index() -> None:
    assert isinstance(indexed(epoch=0, index=0).wanted(70_000, idle=True), TakeEpoch)


def test_an_index_never_decreases_although_the_clock_does() -> None:
    assert indexed().index_of_epoch(20_000) == 40


def test_lines_follow_after_a_clock_was_set_forward_and_back() -> None:
    """Sinks of stages publish decided lines only: without further ones they published nothing for as long as it was ahead."""
    stage = staged(Between.UNALIGNED, (3, 40))
    hour_ms = 3_600_000
    assert stage.handle(EpochEnding(), 50_000 + hour_ms) == [StampEpoch(3650)]
    stage.handle(EpochServes(4, 3650), 50_000 + hour_ms)
    for epoch, now_ms in ((5, 51_000), (6, 61_000), (7, 71_000)):
        index = 3646 + epoch
        assert stage.handle(look(), now_ms) == [TakeEpoch(index)]
        assert stage.handle(EpochEnding(), now_ms) == [StampEpoch(index)]
        stage.handle(EpochServes(epoch, index), now_ms)
        assert stage.handle(look(index), now_ms) == [ReleaseEpochs(epoch)]
        assert stage.handle(EpochEnding(), now_ms + EVERY_MS - 1) == [StampEpoch(index)]


def look(*stages: int) -> LogsRead:
    return LogsRead(stamp=0, stages=stages, reached=0, arriving=0, idle=False, under_way=bool(stages))


def test_a_program_that_had_no_index_begins_above_every_line_it_may_have_read() -> None:
    stage = indexed(index=0)
    stage.heard(70)
    assert stage.index_of_epoch(40_000) == 71


def test_programs_with_different_intervals_share_their_indices() -> None:
    quick, slow = StageProcess(Between.INDEX, 1000), StageProcess(Between.INDEX, 60_000)
    assert quick.index_of_epoch(120_000) == slow.index_of_epoch(120_500) == 120


def test_sinks_publish_up_to_the_newest_committed_epoch() -> None:
    stage = indexed()
    stage.committed(9, 50)
    assert stage.publishes_up_to == 9


@pytest.mark.parametrize("stamps", [(1, 2, 2, 5), (3, 3, 1, 4), (1, 1, 1), (7, 6, 8)])
def test_epochs_are_forced_where_the_machine_for_messages_forces_checkpoints(stamps: tuple[int, ...]) -> None:
    assert forced_by_stage(stamps) == forced_by_machine(stamps)


def forced_by_stage(stamps: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the first and last index of each epoch that a program takes before it admits segments with these stamps."""
    stage, forced = StageProcess(Between.INDEX, EVERY_MS, 1, 1), []
    for stamp in stamps:
        if not stage.lets_in(stamp):
            stage.heard(stamp)
            asked = stage.wanted(0, idle=False)
            assert isinstance(asked, TakeEpoch)
            forced.append((stage.index + 1, asked.index))
            stage.committed(stage.epoch + 1, stage.index_of_epoch(0))
        assert stage.lets_in(stamp)
    return forced


def forced_by_machine(stamps: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the same for the checkpoints that `IndexWorker` takes before it delivers messages with these indices."""
    graph = Graph("pair", (("s", "k"),))
    worker = IndexWorker(Birth(ProcessId("k"), graph, Incarnation(1), {}, ProtocolSettings()))
    worker.index, forced, delivered, low = 1, [], 0, 0
    worker.handle(Commanded("start", {}))
    channel = channel_between(ProcessId("s"), ProcessId("k"))
    for seq, stamp in enumerate(stamps, 1):
        message = Envelope(ProcessId("s"), ProcessId("k"), Incarnation(1), seq, stamp, "app", {}, None)
        waiting = list(worker.handle(Received(channel, message)))
        while waiting:
            effect = waiting.pop(0)
            if isinstance(effect, CaptureState):
                low = int(effect.index)
            elif isinstance(effect, StoreRecord):
                waiting += worker.handle(Stored(effect.token, True))
                if effect.key[0] == "checkpoint":
                    forced.append((low, worker.index))
            elif isinstance(effect, Deliver):
                delivered += 1
    assert delivered == len(stamps)
    return forced


# -- stages that share their commits ------------------------------------------------------------------------------------


def staged(protocol: Between, *served: tuple[int, int], reads: bool = True) -> StageProcess:
    """A stage whose epochs serve these indices."""
    epoch, index = served[-1]
    return StageProcess(protocol, EVERY_MS, epoch, index, reads, served)


@pytest.mark.parametrize("protocol", [Between.UNALIGNED, Between.ALIGNED])
def test_sinks_publish_the_epoch_of_the_newest_line_that_every_stage_serves(protocol: Between) -> None:
    stage = staged(protocol, (5, 40), (6, 40), (7, 50), (8, 60))
    assert stage.publishes_up_to == 0, "no line is committed yet"
    stage.decide([60, 45])
    assert stage.publishes_up_to == 7
    stage.decide([60, 50])
    assert stage.publishes_up_to == 7
    stage.committed(9, 70)
    stage.decide([70, 70])
    assert stage.publishes_up_to == 9


def test_a_committed_line_is_never_reverted() -> None:
    stage = staged(Between.UNALIGNED, (5, 40), (6, 50))
    stage.decide([50, 50])
    stage.decide([50, 40])
    assert (stage.decided, stage.publishes_up_to) == (50, 6)


def test_an_epoch_that_serves_an_already_committed_line_is_published() -> None:
    stage = staged(Between.UNALIGNED, (5, 40))
    stage.committed(6, 40)
    stage.committed(6, 50)
    stage.decide([50, 50])
    assert stage.publishes_up_to == 6


def test_an_unaligned_stage_takes_its_epoch_although_rows_wait() -> None:
    assert staged(Between.UNALIGNED, (3, 40)).wanted(50_000, False, reached=0, arriving=0) == TakeEpoch(50)


def test_an_aligned_stage_waits_for_the_rows_before_the_line() -> None:
    stage = staged(Between.ALIGNED, (3, 40))
    assert stage.wanted(90_000, False, reached=0, arriving=0) is None
    assert stage.wanted(90_000, False, reached=0, arriving=50) == TakeEpoch(50)
    assert stage.wanted(90_000, False, reached=0, arriving=50) is None, "requested already"
    assert stage.index_of_epoch(90_000) == 40, "the epoch may have been cut before the last rows"
    stage.committed(4, 40)
    assert stage.wanted(90_000, True, reached=50, arriving=50) == SayIndex(4, 50)
    assert not stage.lets_in(50)
    stage.committed(4, 50)
    assert stage.lets_in(50)


def test_an_aligned_stage_without_new_rows_takes_no_epoch() -> None:
    assert staged(Between.ALIGNED, (3, 40)).wanted(90_000, True, reached=0, arriving=50) is None


def test_an_aligned_stage_that_reads_no_edge_follows_its_clock() -> None:
    stage = staged(Between.ALIGNED, (3, 40), reads=False)
    assert stage.wanted(50_000, False) == TakeEpoch(50)
    assert stage.index_of_epoch(50_000) == 50


def planned(*sources: object, sinks: tuple[object, ...] = ()) -> SimpleNamespace:
    return SimpleNamespace(
        job="alerts",
        between=Between.INDEX,
        sources=[SimpleNamespace(name=f"in{number}", source=source) for number, source in enumerate(sources)],
        bindings=[SimpleNamespace(sink=sink) for sink in sinks],
    )


def test_an_index_without_an_edge_is_refused() -> None:
    with pytest.raises(GraphInvalid):
        check_index(planned(object(), sinks=(object(),)))  # type: ignore[arg-type]
    check_index(planned(sinks=(Edge("totals"),)))  # type: ignore[arg-type]


def test_a_sender_without_an_index_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    source = Edge("totals", str(tmp_path))
    monkeypatch.setattr(type(source), "sender_index", lambda self: 0)
    with pytest.raises(GraphInvalid) as refused:
        check_index(planned(source))  # type: ignore[arg-type]
    assert refused.value.context["source"] == "in0"
