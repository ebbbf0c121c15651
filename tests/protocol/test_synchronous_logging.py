"""A message is delivered after its record is durable, and only durable messages are replayed."""

from __future__ import annotations

import pytest

from checkpoint_protocols.ids import Epoch, TimerId
from checkpoint_protocols.machine import InvalidTransition, ProtocolViolation, missing_cells
from checkpoint_protocols.message_logging import synchronous_logging
from checkpoint_protocols.message_logging.synchronous_logging import LoggingPhase, LoggingWorker, log_key, plan
from checkpoint_protocols.recovery import Failure, Part, Records, checkpoint_key
from checkpoint_protocols.vocabulary import (
    AppSent,
    CaptureState,
    Deliver,
    Drop,
    Erase,
    Send,
    SinkTransaction,
    Stored,
    StoreRecord,
    TimerElapsed,
)
from tests.protocol.plain import JOIN, SECOND, START, THIRD, J, K, S, T, all_of, app, birth, only, tokens

TICK = TimerElapsed("checkpoint", TimerId(1), 1_000)
FIRST_RECORD, SECOND_RECORD = "log/000000000001", "log/000000000002"


def started() -> LoggingWorker:
    machine = LoggingWorker(birth(J))
    machine.handle(START)
    return machine


def failed(records: Records) -> LoggingWorker:
    """A second incarnation with the log of the first, without a checkpoint."""
    return LoggingWorker(birth(J, records=records, table={SECOND: {J: Epoch(9)}}))


def two_in_the_log() -> Records:
    machine = started()
    store = only(StoreRecord, machine.handle(app(S, J, 1)))
    machine.handle(app(T, J, 1))
    following = only(StoreRecord, machine.handle(Stored(FIRST_RECORD, ok=True)))
    return {each.key: each.record for each in (store, following)}  # type: ignore[misc]


def test_the_table_decides_every_pair_of_phase_and_event() -> None:
    assert missing_cells(LoggingWorker) == []


def test_a_message_is_delivered_when_its_record_is_durable() -> None:
    machine = started()

    assert tokens(machine.handle(app(S, J, 1))) == [FIRST_RECORD]
    assert machine.handle(Stored(FIRST_RECORD, ok=True)) == [Deliver(app(S, J, 1))]


def test_a_record_that_could_not_be_written_is_written_again_and_nothing_is_delivered() -> None:
    machine = started()
    (store,) = machine.handle(app(S, J, 1))

    assert machine.handle(Stored(FIRST_RECORD, ok=False)) == [store]


def test_messages_during_a_write_are_one_record_and_keep_their_order() -> None:
    machine = started()
    machine.handle(app(S, J, 1))
    for event in (app(T, J, 1), app(S, J, 2)):
        assert machine.handle(event) == []

    deliver, store = machine.handle(Stored(FIRST_RECORD, ok=True))

    assert deliver == Deliver(app(S, J, 1))
    assert isinstance(store, StoreRecord)
    assert store.key == log_key(2)
    assert machine.handle(Stored(SECOND_RECORD, ok=True)) == [Deliver(app(T, J, 1)), Deliver(app(S, J, 2))]


def test_a_repetition_is_dropped_when_its_original_is_delivered_and_not_before() -> None:
    machine = started()
    machine.handle(app(S, J, 1))

    assert machine.handle(app(S, J, 1)) == []
    assert [type(effect) for effect in machine.handle(Stored(FIRST_RECORD, ok=True))] == [Deliver, Drop]
    assert [type(effect) for effect in machine.handle(app(S, J, 1))] == [Drop]


def test_a_gap_on_a_reliable_channel_is_refused() -> None:
    with pytest.raises(InvalidTransition, match="lost messages behind 0"):
        started().handle(app(S, J, 2))


def test_sends_carry_the_receipt_that_they_depend_on() -> None:
    machine = started()
    machine.handle(app(S, J, 1))
    machine.handle(Stored(FIRST_RECORD, ok=True))

    send = only(Send, machine.handle(AppSent(JOIN.outputs[J][0], "x")))

    assert (send.message.seq, send.message.index) == (1, 1)


def test_a_sink_publishes_delivered_rows() -> None:
    machine = LoggingWorker(birth(K))
    machine.handle(START)
    machine.handle(app(J, K, 1))

    shown = only(SinkTransaction, machine.handle(Stored(FIRST_RECORD, ok=True)))

    assert (shown.first, shown.last) == (0, 1)


def test_a_checkpoint_trims_the_log_after_it_is_durable() -> None:
    machine = started()
    machine.handle(app(S, J, 1))
    machine.handle(Stored(FIRST_RECORD, ok=True))

    assert [type(effect) for effect in machine.handle(TICK)[:2]] == [CaptureState, StoreRecord]
    assert all_of(CaptureState, machine.handle(TICK)) == []
    assert only(Erase, machine.handle(Stored("checkpoint/000000000001", ok=True))).keys == (log_key(1),)


def test_a_checkpoint_that_could_not_be_written_trims_nothing() -> None:
    machine = started()
    machine.handle(app(S, J, 1))
    machine.handle(Stored(FIRST_RECORD, ok=True))
    machine.handle(TICK)

    assert all_of(Erase, machine.handle(Stored("checkpoint/000000000001", ok=False))) == []


def test_an_unexpected_answer_is_refused() -> None:
    with pytest.raises(InvalidTransition, match="nothing of that name"):
        started().handle(Stored("checkpoint/000000000001", ok=True))


def test_a_new_incarnation_replays_its_log_first() -> None:
    machine = failed(two_in_the_log())
    machine.handle(START)

    assert machine.phase is LoggingPhase.REPLAYING
    with pytest.raises(InvalidTransition, match="the replay comes first"):
        machine.handle(app(S, J, 2))
    replays = [app(S, J, 1, replayed=True), app(T, J, 1, replayed=True)]
    assert [only(Deliver, machine.handle(each)).event for each in replays] == replays
    assert machine.phase is LoggingPhase.IDLE


def test_a_restarted_survivor_stores_the_same_record_again() -> None:
    machine = started()
    before = machine.handle(app(S, J, 1))
    machine.handle(app(T, J, 1))

    restarted = LoggingWorker(birth(J, checkpoint=machine.record(), table={SECOND: {K: Epoch(1)}}))

    (again,) = all_of(StoreRecord, restarted.handle(START))
    (first,) = all_of(StoreRecord, before)
    assert again.key == first.key
    assert isinstance(again.record, dict)
    assert isinstance(first.record, dict)
    assert again.record["messages"] == first.record["messages"]


def test_a_survivor_that_was_replaying_waits_for_the_rest() -> None:
    machine = failed(two_in_the_log())
    machine.handle(START)
    machine.handle(app(S, J, 1, replayed=True))

    restarted = LoggingWorker(
        birth(J, checkpoint=machine.record(), table={SECOND: {J: Epoch(9)}, THIRD: {K: Epoch(1)}})
    )
    restarted.handle(START)

    assert restarted.phase is LoggingPhase.REPLAYING


def test_the_plan_moves_only_failed_processes_and_stops_at_the_first_missing_record() -> None:
    records = two_in_the_log()
    torn = {key: record for key, record in records.items() if key != log_key(2)}
    everybody: dict[object, Records] = {S: {}, T: {}, J: torn, K: {}}
    survivors = {process: LoggingWorker(birth(process)).record() for process in (S, T, K)}

    decided = plan(Failure(JOIN, SECOND, {}, frozenset({J}), everybody, survivors))  # type: ignore[arg-type]

    assert decided.row == {J: 2}
    assert decided.parts[J] == Part(None, (app(S, J, 1).message,), initial=True, because="it failed")
    assert {decided.parts[process].checkpoint for process in (S, T, K)} == {None}


def test_a_source_numbers_its_checkpoints_itself() -> None:
    machine = LoggingWorker(birth(S))
    machine.handle(START)
    assert all_of(CaptureState, machine.handle(TICK)) == []

    machine.handle(AppSent(JOIN.outputs[S][0], "x"))

    assert only(StoreRecord, machine.handle(TICK)).key == checkpoint_key(1)
    assert synchronous_logging.PROTOCOL.needs.deterministic


def test_a_receipt_without_a_place_breaks_the_machines_invariant() -> None:
    machine = started()
    machine.order = 3

    with pytest.raises(ProtocolViolation, match="every receipt has its place"):
        machine.handle(app(S, J, 1))
