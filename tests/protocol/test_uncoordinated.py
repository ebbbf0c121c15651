"""Uncoordinated checkpoints: random schedules, small scopes, every cell of the tables, and single steps."""

from __future__ import annotations

import pytest

from checkpoint_protocols.checkpoints.uncoordinated import (
    LINE,
    PROTOCOL,
    REPORT,
    Forcing,
    GatheringPhase,
    LineCoordinator,
    UncoordinatedWorker,
)
from checkpoint_protocols.graph import COORDINATOR, Graph
from checkpoint_protocols.ids import ChannelId, Epoch, Incarnation, ProcessId, TimerId
from checkpoint_protocols.machine import Drop, InvalidTransition, missing_cells
from checkpoint_protocols.recovery import Birth, Failure, Part, ProtocolSettings, checkpoint_key
from checkpoint_protocols.vocabulary import (
    AppSent,
    CaptureState,
    Commanded,
    Deliver,
    Envelope,
    Erase,
    Note,
    Received,
    Send,
    SetTimer,
    SinkTransaction,
    Stored,
    StoreRecord,
    TimerElapsed,
)
from tests.protocol.line_runs import cells_not_reached, check_schedules, small_scope

S, A, K = ProcessId("s"), ProcessId("a"), ProcessId("k")
PAIR = Graph("pair", (("s", "k"),))
PIPE = Graph("pipe", (("s", "a"), ("a", "k")))
CHANNEL = ChannelId("s->k")
FORCING = ProtocolSettings(options={"forcing": "hmnr"})


# -- whole jobs --------------------------------------------------------------------------------------------------------


def test_every_random_schedule_is_survived_with_the_greatest_line():
    """O4 compares every plan with all possible lines."""
    counts = check_schedules(PROTOCOL, range(10))
    assert min(counts[what] for what in ("recovery", "shown", "complete", "drop")) > 50


def test_forced_checkpoints_change_only_their_number():
    counts = check_schedules(PROTOCOL, range(6), settings=FORCING)
    assert min(counts[what] for what in ("recovery", "shown", "forced")) > 20


def test_every_order_of_one_message_and_one_crash():
    """912 states, 2408 transitions."""
    assert small_scope(PROTOCOL, PAIR, inputs=1, crashes=1, timers=0).states > 500


def test_every_order_of_one_message_and_two_checkpoints():
    """244 states, 634 transitions."""
    assert small_scope(PROTOCOL, PAIR, inputs=1, crashes=0, timers=2).states > 150


@pytest.mark.parametrize("machine", [UncoordinatedWorker, LineCoordinator])
def test_every_cell_of_the_tables_is_reached(machine):
    assert missing_cells(machine) == []
    assert cells_not_reached(PROTOCOL, machine) == set()


def worker(me=K, checkpoint=None, records=None):
    made = UncoordinatedWorker(Birth(me, PAIR, Incarnation(1), {}, ProtocolSettings(), checkpoint, records or {}))
    return made, made.handle(Commanded("start", {}))


def received(seq=1, index=0):
    return Received(CHANNEL, Envelope(S, K, Incarnation(1), seq, index, "app", {}, f"m{seq}"))


def tick(timer=1):
    return TimerElapsed("checkpoint", TimerId(timer), 0)


def kinds(effects):
    return [type(effect) for effect in effects]


def saved(machine):
    machine.handle(tick())
    return machine.handle(Stored(str(machine.interval), True))


def test_an_incarnation_first_reports_its_durable_checkpoints():
    first, _ = worker()
    first.handle(received(index=4))
    record = {**first.record(), "index": 1}
    _, effects = worker(checkpoint=record, records={checkpoint_key(1): record})
    assert effects[1].message.body == [[1, {"s": 4}]]


def test_a_checkpoint_begins_the_next_interval():
    machine, _ = worker(S)
    (before,) = machine.handle(AppSent(CHANNEL, "x"))
    assert kinds(machine.handle(tick())) == [SetTimer, CaptureState, StoreRecord]
    (after,) = machine.handle(AppSent(CHANNEL, "y"))
    assert (before.message.index, after.message.index) == (0, 1)


def test_a_state_without_changes_is_not_saved():
    machine, _ = worker()
    assert kinds(machine.handle(tick())) == [SetTimer]


def test_one_checkpoint_is_stored_at_a_time():
    machine, _ = worker()
    machine.handle(received())
    machine.handle(tick())
    machine.handle(received(2))
    assert kinds(machine.handle(tick(2))) == [SetTimer]


def test_a_write_that_failed_is_written_again():
    machine, _ = worker()
    machine.handle(received())
    *_, store = machine.handle(tick())
    assert machine.handle(Stored(store.token, False)) == [store]


def test_a_report_names_the_newest_interval_of_each_sender():
    machine, _ = worker()
    machine.handle(received(1, index=3))
    machine.handle(received(2, index=3))
    (report,) = saved(machine)
    assert (report.message.kind, report.message.body) == (REPORT, [[1, {"s": 3}]])


def test_a_gap_in_a_channel_is_a_bug_of_the_host():
    machine, _ = worker()
    with pytest.raises(InvalidTransition, match="the channel is in order, and 1 is next"):
        machine.handle(received(2))


def settled(line, old):
    message = Envelope(COORDINATOR, K, Incarnation(1), 0, line, LINE, {}, old)
    return Received(ChannelId("coordinator=>k"), message)


def test_a_sink_publishes_rows_before_the_line():
    machine, _ = worker()
    machine.handle(received())
    saved(machine)
    machine.handle(received(2))
    (shown,) = machine.handle(settled(1, []))
    assert (type(shown), shown.first, shown.last) == (SinkTransaction, 0, 1)


def test_a_late_older_line_publishes_nothing():
    machine, _ = worker()
    for seq in (1, 2):
        machine.handle(received(seq))
        saved(machine)
    assert kinds(machine.handle(settled(2, [1]))) == [SinkTransaction, Erase]
    assert machine.handle(settled(1, [])) == []


def forced(checkpoint=None, incarnation=1, table=None):
    birth = Birth(K, PAIR, Incarnation(incarnation), table or {}, FORCING, checkpoint)
    machine = UncoordinatedWorker(birth)
    return machine, machine.handle(Commanded("start", {}))


def after_my_checkpoint(index=1):
    """A message that depends on checkpoint 0 of `k`, with another checkpoint on the path."""
    peer = Forcing(S, (S, K))
    peer.taken[K], peer.saved[K] = True, 0
    return Received(CHANNEL, Envelope(S, K, Incarnation(1), 1, index, "app", peer.send(K), "m"))


def test_a_forced_checkpoint_precedes_the_delivery_and_names_the_message():
    machine, _ = forced()
    event = after_my_checkpoint()
    effects = machine.handle(event)
    assert kinds(effects) == [Note, CaptureState, StoreRecord, Deliver]
    assert effects[0] == Note("forced", "1")
    assert effects[2].record["waiting"] == [event.message.as_record()]
    assert effects[2].record["received"] == {}


def test_a_message_that_waited_in_a_checkpoint_is_delivered_after_it():
    machine, _ = forced()
    record = machine.handle(after_my_checkpoint())[2].record
    assert Deliver in kinds(forced(record, 2, {2: {K: Epoch(2)}})[1])
    assert kinds(forced(record, 2, {2: {S: Epoch(1), K: Epoch(2)}})[1])[-1] is Drop


def test_checkpoints_are_reported_in_their_order():
    machine, _ = forced()
    machine.handle(after_my_checkpoint())
    peer = Forcing(S, (S, K))
    peer.taken[K], peer.saved[K] = True, 1
    machine.handle(Received(CHANNEL, Envelope(S, K, Incarnation(1), 2, 2, "app", peer.send(K), "m")))
    assert machine.handle(Stored("2", True)) == []
    (report_sent,) = machine.handle(Stored("1", True))
    assert (report_sent.message.index, report_sent.message.body) == (0, [[1, {}], [2, {"s": 1}]])


# -- coordinator -------------------------------------------------------------------------------------------------------


def report(process, *checkpoints, after=0):
    message = Envelope(process, COORDINATOR, Incarnation(1), 0, after, REPORT, {}, [list(each) for each in checkpoints])
    return Received(ChannelId(f"{process}=>coordinator"), message)


def coordinator():
    made = LineCoordinator(Birth(COORDINATOR, PAIR, Incarnation(1), {}, ProtocolSettings()))
    assert made.handle(Commanded("start", {})) == []
    return made


def test_no_line_is_decided_before_all_processes_have_reported():
    machine = coordinator()
    assert machine.handle(report(S, (1, {}))) == []
    assert machine.phase is GatheringPhase.GATHERING
    assert kinds(machine.handle(report(K))) == [Note, Send]


def test_a_checkpoint_that_depends_on_an_unsaved_interval_is_not_on_the_line():
    machine = coordinator()
    machine.handle(report(S))
    machine.handle(report(K, (1, {"s": 0})))
    assert machine.line == {S: 0, K: 0}
    machine.handle(report(S, (1, {})))
    assert machine.line == {S: 1, K: 1}


def test_a_checkpoint_that_no_recovery_can_restore_is_erased():
    machine = coordinator()
    machine.handle(report(S, (1, {}), (2, {})))
    effects = machine.handle(report(K))
    assert [send.message.body for send in effects if isinstance(send, Send)] == [[1]]


def test_a_report_that_overtook_another_waits_for_it():
    """If 2 were applied first, 1 would split an interval that counted as one."""
    machine = coordinator()
    machine.handle(report(S))
    machine.handle(report(K))
    assert machine.handle(report(S, (2, {}), after=1)) == []
    machine.handle(report(S, (1, {})))
    assert machine.line == {S: 2, K: 0}


# -- plan --------------------------------------------------------------------------------------------------------------


def failure(failed, records, survivors):
    everybody = {process: records.get(process, {}) for process in PIPE.processes}
    return Failure(PIPE, Incarnation(2), {}, frozenset(failed), everybody, survivors)


def record(index, **seen):
    return {"incarnation": 1, "index": index, "seen": seen}


def test_a_plan_names_the_cause_of_each_rollback():
    plan = PROTOCOL.plan(failure({S}, {A: {checkpoint_key(2): record(2, s=1)}}, {A: record(2, s=1), K: record(0, a=2)}))
    assert plan.row == {S: 0, A: 0, K: 0}
    assert plan.parts[A] == Part(None, initial=True, because="it received what is undone: s from 0")
    assert plan.parts[K].because == "it received what is undone: a from 0"


def test_a_process_that_received_no_undone_message_stays():
    records = {S: {checkpoint_key(1): record(1)}}
    plan = PROTOCOL.plan(failure({S}, records, {A: record(0, s=0), K: record(0)}))
    assert plan.row == {S: 1}
    assert plan.parts == {S: Part(checkpoint_key(1), because="it failed")}


def test_a_coordinator_that_fails_undoes_nothing():
    survivors = {process: record(0) for process in PIPE.processes}
    plan = PROTOCOL.plan(failure({COORDINATOR}, {}, survivors))
    assert (plan.row, plan.parts) == ({}, {})


def test_a_message_is_delivered_once_in_order():
    machine, _ = worker()
    assert kinds(machine.handle(received())) == [Deliver]
