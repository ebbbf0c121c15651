"""Index-based checkpoints and adaptive logging: random schedules, small scopes, and every cell of the table."""

from __future__ import annotations

import pytest

from checkpoint_protocols.checkpoints import index_based
from checkpoint_protocols.checkpoints.index_based import IndexPhase, IndexWorker, Receipts, local_part, log_key
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.ids import ChannelId, Epoch, Incarnation, ProcessId, TimerId
from checkpoint_protocols.machine import (
    Drop,
    InvalidTransition,
    ProtocolViolation,
    missing_cells,
)
from checkpoint_protocols.message_logging import adaptive_logging
from checkpoint_protocols.recovery import Birth, ProtocolSettings, checkpoint_key
from checkpoint_protocols.vocabulary import (
    AppSent,
    CaptureState,
    CheckpointKind,
    Commanded,
    Deliver,
    Envelope,
    Erase,
    Hold,
    Note,
    Received,
    Release,
    Send,
    SetTimer,
    SinkTransaction,
    Stored,
    StoreRecord,
    TimerElapsed,
)
from tests.protocol.line_runs import SKEWED, cells_not_reached, check_schedules, small_scope

S, K = ProcessId("s"), ProcessId("k")
PAIR = Graph("pair", (("s", "k"),))
CHANNEL = ChannelId("s->k")
BOTH = [index_based.PROTOCOL, adaptive_logging.PROTOCOL]
each_protocol = pytest.mark.parametrize("protocol", BOTH, ids=lambda protocol: protocol.name)


# -- whole jobs --------------------------------------------------------------------------------------------------------


@each_protocol
def test_every_random_schedule_is_survived(protocol):
    counts = check_schedules(protocol, range(8))
    assert min(counts[what] for what in ("forced", "logged", "recovery", "shown", "complete")) > 10


@each_protocol
def test_skewed_clocks_break_no_schedule(protocol):
    assert check_schedules(protocol, range(4), SKEWED)["forced"] > 10


def test_adaptive_logging_logs_a_smaller_share():
    """By the ratio that both report; the difference are messages of an earlier incarnation that were not undone."""
    both = [check_schedules(protocol, range(20, 26)) for protocol in BOTH]
    always, adaptive = (counts["logged"] / counts["messages"] for counts in both)
    assert adaptive < always


def test_every_order_of_one_message_and_one_crash():
    """556 states, 1624 transitions; two messages: 4696 states, 17134 transitions."""
    assert small_scope(index_based.PROTOCOL, PAIR, inputs=1, crashes=1, timers=0).states > 300


def test_every_order_of_two_messages_and_one_checkpoint():
    """572 states, 1528 transitions; one message and two checkpoints: 932 states, 2656 transitions."""
    assert small_scope(index_based.PROTOCOL, PAIR, inputs=2, crashes=0, timers=1).states > 300


@each_protocol
def test_every_cell_of_the_table_is_reached(protocol):
    machine = protocol.worker
    assert missing_cells(machine) == []
    assert cells_not_reached(protocol, machine) == set()


def worker(me=K, checkpoint=None, records=None, incarnation=1, table=None):
    birth = Birth(me, PAIR, Incarnation(incarnation), table or {}, ProtocolSettings(), checkpoint, records or {})
    made = IndexWorker(birth)
    return made, made.handle(Commanded("start", {"local_ms": 0}))


def message(seq=1, index=0, incarnation=1, kind="app", source=S, target=K):
    return Envelope(source, target, Incarnation(incarnation), seq, index, kind, {}, f"m{seq}")


def received(**what):
    return Received(CHANNEL, message(**what))


def tick(local_ms, timer=1):
    return TimerElapsed("checkpoint", TimerId(timer), local_ms)


def at_index(index, me=K):
    """A worker whose checkpoint is on disk."""
    machine, _ = worker(me)
    machine.handle(tick(index * 1_000))
    machine.handle(Stored("checkpoint", True))
    return machine


def kinds(effects):
    return [type(effect) for effect in effects]


def test_a_higher_index_is_saved_before_the_message_is_delivered():
    machine, _ = worker()
    effects = machine.handle(received(index=3))
    assert kinds(effects) == [Note, Hold, Hold, CaptureState, StoreRecord]
    assert effects[3] == CaptureState(Epoch(1), CheckpointKind.FORCED)
    assert effects[4].record["waiting"] == [message(index=3).as_record()]
    stored = machine.handle(Stored("checkpoint", True))
    assert kinds(stored) == [Release, Release, Note, Send, Deliver]
    assert machine.index == 3


def test_a_lower_index_is_logged_before_it_is_delivered():
    machine = at_index(2)
    (store,) = machine.handle(received(index=1))
    assert store.key == log_key(message(index=1))
    assert store.record["index"] == 1
    assert kinds(machine.handle(Stored(store.token, True))) == [Note, Deliver]


def test_the_share_of_logged_messages_continues_from_a_checkpoint():
    machine = at_index(2)
    (store,) = machine.handle(received(index=1))
    machine.handle(Stored(store.token, True))
    *_, checkpoint = machine.handle(tick(5_000))
    again, _ = worker(checkpoint=checkpoint.record, incarnation=2)
    again.handle(tick(9_000))
    assert Note("logged of received", "1/1") in again.handle(Stored("checkpoint", True))


def test_a_write_that_failed_is_written_again():
    machine = at_index(2)
    (store,) = machine.handle(received(index=1))
    assert machine.handle(Stored(store.token, False)) == [store]
    *_, checkpoint = machine.handle(tick(5_000))
    assert machine.handle(Stored("checkpoint", False)) == [checkpoint]


def test_the_same_index_is_delivered_at_once():
    assert kinds(worker()[0].handle(received())) == [Deliver]


def test_a_repeated_message_is_dropped():
    machine, _ = worker()
    machine.handle(received())
    assert kinds(machine.handle(received())) == [Drop]


def test_a_repeated_message_stays_in_its_channel_while_the_first_is_being_logged():
    machine = at_index(2)
    (store,) = machine.handle(received(index=1))
    assert machine.handle(received(index=1)) == []
    assert Deliver in kinds(machine.handle(Stored(store.token, True)))
    assert kinds(machine.handle(received(index=1))) == [Drop]


def test_sends_carry_the_index():
    machine = at_index(4, me=S)
    (send,) = machine.handle(AppSent(CHANNEL, "x"))
    assert (send.message.index, send.message.seq) == (4, 1)


def test_a_clock_that_stands_still_takes_no_checkpoint():
    assert kinds(at_index(2).handle(tick(2_500))) == [SetTimer]


def test_the_timer_waits_for_the_next_full_interval():
    _, effects = worker()
    assert effects[0].delay_ms == 1_000
    machine, _ = worker()
    assert machine.handle(tick(700))[0].delay_ms == 300


def test_a_message_of_a_newer_incarnation_waits_for_the_checkpoint():
    """The channel is held, but the host delivers the message that made this process roll back."""
    machine, _ = worker()
    machine.handle(tick(1_000))
    assert machine.handle(received()) == []
    assert machine.handle(tick(1_500)) == [SetTimer("checkpoint", 500, TimerId(3), tick(0, 3))]
    stored = machine.handle(Stored("checkpoint", True))
    assert kinds(stored)[-1] is StoreRecord  # index 0 is late now


def test_an_unexpected_stored_checkpoint_is_refused():
    with pytest.raises(InvalidTransition, match="no checkpoint is being stored"):
        worker()[0].handle(Stored("checkpoint", True))


def test_the_least_index_of_all_is_complete():
    machine = at_index(5)
    peer = Received(ChannelId("s=>k"), message(index=3, kind="durable"))
    assert machine.handle(peer)[0] == Note("complete", "3")
    assert machine.handle(peer) == []


def test_a_sink_publishes_rows_up_to_the_complete_checkpoint():
    machine, _ = worker()
    machine.handle(received())
    machine.handle(tick(1_000))
    machine.handle(Stored("checkpoint", True))
    machine.handle(received(seq=2, index=1))
    effects = machine.handle(Received(ChannelId("s=>k"), message(index=1, kind="durable")))
    shown = [effect for effect in effects if isinstance(effect, SinkTransaction)]
    assert [(each.first, each.last) for each in shown] == [(0, 1)]


# -- recovery ----------------------------------------------------------------------------------------------------------


def test_after_a_recovery_no_process_is_above_the_line():
    """The checkpoint served indices 4 to 9; the recovery restored 6."""
    record = {**at_index(9).record(), "index": 9}
    machine, _ = worker(checkpoint=record, incarnation=2, table={2: Epoch(6)})
    assert machine.index == 6


def test_a_survivor_below_the_line_keeps_its_state():
    now = at_index(2).record()
    part = local_part({}, {2: Epoch(3)}, Incarnation(2), now)
    assert (part.checkpoint, part.initial) == (None, False)
    assert part.because == "index 2 is below 3: nothing of it is undone"


def test_a_survivor_that_missed_a_recovery_obeys_the_lower_line():
    now = at_index(5).record()
    records = {checkpoint_key(low): {**now, "index": low} for low in (1, 2, 3, 4, 5)}
    part = local_part(records, {2: Epoch(2), 3: Epoch(4)}, Incarnation(3), now)
    assert part.checkpoint == checkpoint_key(2)


def test_a_waiting_message_is_judged_again_after_a_recovery():
    machine, _ = worker()
    machine.handle(received(index=3))
    _, effects = worker(checkpoint=machine.record(), incarnation=2, table={2: Epoch(2)})
    assert [effect.why for effect in effects if isinstance(effect, Drop)] == ["its send was undone"]


def test_a_row_per_process_is_refused():
    with pytest.raises(ProtocolViolation, match="the row is one index for all"):
        local_part({}, {2: {K: Epoch(1)}}, Incarnation(2), at_index(2).record())


def test_a_checkpoint_during_a_replay_does_not_cover_later_messages_of_the_log():
    """The message is in the log, not in the state, so it stays in the log after the new checkpoint completes."""
    logger = at_index(2)
    (store,) = logger.handle(received(index=1))
    machine, _ = worker(checkpoint=at_index(2).record(), records={store.key: store.record})
    machine.handle(tick(3_000))
    machine.handle(Stored("checkpoint", True))
    effects = machine.handle(Received(ChannelId("s=>k"), message(index=3, kind="durable")))
    assert kinds(effects) == [Note]
    machine.handle(received(index=1))
    machine.handle(Stored(store.token, True))
    machine.handle(tick(4_000))
    machine.handle(Stored("checkpoint", True))
    effects = machine.handle(Received(ChannelId("s=>k"), message(index=4, kind="durable")))
    assert [each.keys for each in effects if isinstance(each, Erase)] == [(checkpoint_key(3), store.key)]


def test_a_logged_message_whose_send_was_undone_is_erased():
    logger = at_index(3)
    (store,) = logger.handle(received(index=2))
    record = {**at_index(1).record(), "incarnation": 2}
    table = {2: Epoch(2)}
    machine, _ = worker(checkpoint=record, records={store.key: store.record}, incarnation=2, table=table)
    machine.handle(tick(2_000))
    machine.handle(Stored("checkpoint", True))
    effects = machine.handle(Received(ChannelId("s=>k"), message(index=2, incarnation=2, kind="durable")))
    assert [each.keys for each in effects if isinstance(each, Erase)] == [(store.key,)]


# -- receipts ----------------------------------------------------------------------------------------------------------


def test_receipts_are_compact_and_survive_a_record():
    receipts = Receipts()
    for seq in (1, 2, 5, 3, 7):
        receipts.add(message(seq=seq))
    assert receipts.as_record() == {CHANNEL: [3, [5, 7]]}
    again = Receipts(receipts.as_record())
    assert [seq for seq in range(1, 9) if message(seq=seq) in again] == [1, 2, 3, 5, 7]


def test_the_phase_is_running_before_anything_is_saved():
    assert worker()[0].phase is IndexPhase.RUNNING
