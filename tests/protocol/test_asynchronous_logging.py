"""Asynchronous logging: random schedules, small scopes, every cell of the tables, and single steps."""

from __future__ import annotations

import pytest

from checkpoint_protocols.graph import COORDINATOR, Graph
from checkpoint_protocols.ids import ChannelId, Epoch, Incarnation, ProcessId, TimerId
from checkpoint_protocols.machine import Drop, InvariantBroken, ProtocolViolation, missing_cells
from checkpoint_protocols.message_logging.asynchronous_logging import (
    NUMBERS_PER_INCARNATION,
    PROTOCOL,
    RECOVERABLE,
    STABLE,
    AsynchronousWorker,
    RecoveryCoordinator,
)
from checkpoint_protocols.message_logging.volatile_log import RECEIVED_IN, batch_key, rebuildable
from checkpoint_protocols.recovery import Birth, Failure, Part, ProtocolSettings, checkpoint_key
from checkpoint_protocols.vocabulary import (
    AppSent,
    CaptureState,
    CheckpointKind,
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
SK, SA, AK = ChannelId("s->k"), ChannelId("s->a"), ChannelId("a->k")


# -- whole jobs --------------------------------------------------------------------------------------------------------


def test_every_random_schedule_is_survived():
    counts = check_schedules(PROTOCOL, range(10))
    assert min(counts[what] for what in ("recovery", "shown", "complete", "drop", "logged", "capture")) > 50


def test_every_order_of_one_message_one_crash_and_no_flush():
    """124 states, 212 transitions; with one flush: 954 states, 1876 transitions."""
    assert small_scope(PROTOCOL, PAIR, inputs=1, crashes=1, timers=0).states > 80


def test_every_order_of_one_message_and_two_flushes():
    """50 states, 77 transitions."""
    assert small_scope(PROTOCOL, PAIR, inputs=1, crashes=0, timers=2).states > 30


@pytest.mark.parametrize("machine", [AsynchronousWorker, RecoveryCoordinator])
def test_every_cell_of_the_tables_is_reached(machine):
    assert missing_cells(machine) == []
    assert cells_not_reached(PROTOCOL, machine) == set()


def worker(me=A, checkpoint=None, records=None, incarnation=1, table=None, every=100):
    settings = ProtocolSettings(options={"checkpoint_every": every})
    made = AsynchronousWorker(
        Birth(me, PIPE, Incarnation(incarnation), table or {}, settings, checkpoint, records or {})
    )
    return made, made.handle(Commanded("start", {}))


def received(seq=1, index=0, replayed=False, received_in=None, incarnation=1, channel=SA):
    source, target = channel.split("->")
    header = {} if received_in is None else {RECEIVED_IN: received_in}
    message = Envelope(source, target, Incarnation(incarnation), seq, index, "app", header, f"m{seq}")
    return Received(channel, message, replayed)


def tick(timer=1):
    return TimerElapsed("checkpoint", TimerId(timer), 0)


def kinds(effects):
    return [type(effect) for effect in effects]


def flushed(machine):
    *_, store = machine.handle(tick())
    return store, machine.handle(Stored("checkpoint", True))


def recoverable(index, target=A):
    message = Envelope(COORDINATOR, target, Incarnation(1), 0, index, RECOVERABLE, {}, None)
    return Received(ChannelId(f"coordinator=>{target}"), message)


def test_a_receipt_begins_an_interval_and_is_delivered_at_once():
    machine, _ = worker(K)
    assert kinds(machine.handle(received(index=7, channel=AK))) == [Deliver]
    assert (machine.interval, machine.ddv) == (1, {"a": 7})


def test_the_vector_keeps_the_newest_interval():
    machine, _ = worker(K)
    machine.handle(received(1, index=7, channel=AK))
    machine.handle(received(2, index=5, channel=AK))
    assert machine.ddv == {"a": 7}


def test_a_flush_stores_the_memory_as_one_batch_and_reports_each_interval():
    machine, _ = worker()
    for seq in (1, 2):
        machine.handle(received(seq))
    store, effects = flushed(machine)
    assert store.key == batch_key(1)
    assert effects[0] == Note("logged", "2")
    assert effects[1].message.body == [[1, {"s": 0}], [2, {"s": 0}]]
    assert machine.memory == {}


def test_every_few_flushes_a_checkpoint_makes_its_interval_stable():
    machine, _ = worker(every=1)
    machine.handle(received())
    effects = machine.handle(tick())
    assert kinds(effects) == [SetTimer, CaptureState, StoreRecord]
    assert effects[1] == CaptureState(Epoch(1), CheckpointKind.BASIC)
    (report,) = machine.handle(Stored("checkpoint", True))
    assert report.message.body == [[1, {"s": 0}]]


def test_a_flush_without_new_receipts_stores_nothing():
    assert kinds(worker()[0].handle(tick())) == [SetTimer]


def test_one_flush_at_a_time():
    machine, _ = worker()
    machine.handle(received())
    machine.handle(tick())
    machine.handle(received(2))
    assert kinds(machine.handle(tick(2))) == [SetTimer]
    machine.handle(Stored("checkpoint", True))
    assert list(machine.memory) == [2]


@pytest.mark.parametrize("every", [1, 100])
def test_a_write_that_failed_is_written_again(every):
    machine, _ = worker(every=every)
    machine.handle(received())
    *_, store = machine.handle(tick())
    assert machine.handle(Stored("checkpoint", False)) == [store]


def test_a_source_saves_its_position_and_keeps_only_the_newest():
    machine, _ = worker(S)
    (send,) = machine.handle(AppSent(SA, "x"))
    assert (send.message.index, send.message.seq) == (0, 1)
    store, effects = flushed(machine)
    assert (store.key, effects) == (checkpoint_key(1), [])
    machine.handle(AppSent(SA, "y"))
    assert flushed(machine)[1] == [Erase((checkpoint_key(1),))]


def test_a_message_that_a_replay_sends_again_is_dropped():
    machine, _ = worker()
    machine.handle(received(1))
    assert kinds(machine.handle(received(1))) == [Drop]


def test_new_sends_after_a_recovery_have_numbers_that_were_never_used():
    machine, _ = worker(incarnation=3, table={2: {}, 3: {}})
    machine.handle(received(1, replayed=True, received_in=1))
    (again,) = machine.handle(AppSent(AK, "x"))
    machine.handle(received(2, incarnation=3))
    (new,) = machine.handle(AppSent(AK, "y"))
    assert (again.message.seq, new.message.seq) == (1, 2 * NUMBERS_PER_INCARNATION + 1)


def test_a_sink_publishes_its_rows_up_to_the_recoverable_interval():
    machine, _ = worker(K)
    for seq in (1, 2, 3):
        machine.handle(received(seq, channel=AK))
    (shown,) = machine.handle(recoverable(2, K))
    assert (type(shown), shown.first, shown.last) == (SinkTransaction, 0, 2)
    assert machine.handle(recoverable(1, K)) == []


def test_a_replaying_sink_publishes_up_to_its_replayed_interval():
    machine, _ = worker(K)
    assert machine.handle(recoverable(1, K)) == []
    assert kinds(machine.handle(received(channel=AK))) == [Deliver, SinkTransaction]


def test_records_older_than_the_checkpoint_of_the_line_are_erased():
    machine, _ = worker(every=2)
    machine.handle(received(1))
    flushed(machine)
    machine.handle(received(2))
    flushed(machine)
    assert machine.handle(recoverable(1)) == []
    assert machine.handle(recoverable(2)) == [Erase((batch_key(1),))]
    for seq in (3, 4):
        machine.handle(received(seq))
        flushed(machine)
    assert machine.handle(recoverable(4)) == [Erase((checkpoint_key(2), batch_key(3)))]


@pytest.mark.parametrize(("first_undone", "erased"), [(1, True), (2, False)], ids=["undone", "kept"])
def test_an_incarnation_first_erases_checkpoints_of_undone_intervals(first_undone, erased):
    machine, _ = worker(every=1)
    machine.handle(received())
    store, _ = flushed(machine)
    _, effects = worker(records={store.key: store.record}, incarnation=2, table={2: {A: Epoch(first_undone)}})
    assert (Erase((checkpoint_key(1),)) in effects) is erased


def test_an_incarnation_first_reports_its_stable_intervals():
    machine, _ = worker()
    machine.handle(received())
    store, _ = flushed(machine)
    _, effects = worker(records={store.key: store.record})
    assert effects[1].message.body == [[1, {"s": 0}]]


def test_a_durable_receipt_is_not_stored_again_after_its_replay():
    machine, _ = worker()
    machine.handle(received())
    store, _ = flushed(machine)
    again, _ = worker(records={store.key: store.record})
    again.handle(received(1, replayed=True, received_in=1))
    assert again.memory == {}


def test_a_row_for_all_is_refused():
    with pytest.raises(ProtocolViolation, match="a row has one per process"):
        worker(incarnation=2, table={2: Epoch(3)})


# -- coordinator -------------------------------------------------------------------------------------------------------


def stable(process, *intervals):
    body = [list(each) for each in intervals]
    message = Envelope(process, COORDINATOR, Incarnation(1), 0, 0, STABLE, {}, body)
    return Received(ChannelId(f"{process}=>coordinator"), message)


def coordinator():
    made = RecoveryCoordinator(Birth(COORDINATOR, PIPE, Incarnation(1), {}, ProtocolSettings()))
    assert made.handle(Commanded("start", {})) == []
    return made


def test_an_interval_completes_after_those_it_depends_on():
    machine = coordinator()
    assert machine.handle(stable(K, (1, {"a": 1}))) == []
    effects = machine.handle(stable(A, (1, {"s": 0})))
    assert effects[0] == Note("complete", "a:1 k:1")
    assert sorted((send.message.target, send.message.index) for send in effects if isinstance(send, Send)) == [
        ("a", 1),
        ("k", 1),
    ]


def test_a_vector_that_moves_back_is_a_bug():
    machine = coordinator()
    machine.handle(stable(A, (2, {})))
    machine.vector.rv = {A: 1}
    with pytest.raises(InvariantBroken, match="RV never moves back"):
        machine.validate()


# -- plan --------------------------------------------------------------------------------------------------------------


def failure(failed, records, survivors, table=None, incarnation=2):
    everybody = {process: records.get(process, {}) for process in PIPE.processes}
    return Failure(PIPE, Incarnation(incarnation), table or {}, frozenset(failed), everybody, survivors)


def of_three_receipts(flush_after=1):
    """Current record and durable records of `a` after three receipts, of which the first is durable."""
    machine, _ = worker()
    records = {}
    for seq in (1, 2, 3):
        machine.handle(received(seq))
        if seq == flush_after:
            store, _ = flushed(machine)
            records[store.key] = store.record
    return machine.record(), records


def sink(interval, of_a):
    """Process `k` at an interval that depends on one of `a`."""
    machine, _ = worker(K)
    for seq in range(1, interval + 1):
        machine.handle(received(seq, index=of_a, channel=AK))
    return machine.record()


def test_failed_processes_are_rebuilt_to_stable_intervals_and_orphans_roll_back():
    _, records = of_three_receipts()
    plan = PROTOCOL.plan(failure({A}, {A: records}, {S: worker(S)[0].record(), K: sink(1, of_a=3)}))
    assert plan.row == {A: 2, K: 1}
    assert [message.seq for message in plan.parts[A].replay] == [1]
    assert plan.parts[K] == Part(
        None,
        initial=True,
        because="its newest intervals follow from undone ones; 0 is the newest that can be recovered",
    )


def test_a_failed_process_with_a_checkpoint_restores_it():
    machine, _ = worker(every=1)
    machine.handle(received())
    store, _ = flushed(machine)
    plan = PROTOCOL.plan(
        failure({A}, {A: {store.key: store.record}}, {S: worker(S)[0].record(), K: worker(K)[0].record()})
    )
    assert (plan.parts[A].checkpoint, plan.parts[A].initial) == (store.key, False)


def test_an_incarnation_from_a_checkpoint_continues_its_numbers():
    machine, _ = worker(every=1)
    machine.handle(received())
    machine.handle(AppSent(AK, "m"))
    store, _ = flushed(machine)
    records = {store.key: store.record}
    again, _ = worker(checkpoint=store.record, records=records, incarnation=2, table={2: {A: Epoch(2)}})
    assert [each.message.seq for each in again.handle(AppSent(AK, "n")) if isinstance(each, Send)] == [2]


def test_a_survivor_keeps_receipts_that_only_its_memory_has():
    """`k` fails without a stored record; `a` depends on none of its intervals and stays, with most of its log in memory."""
    now, records = of_three_receipts()
    plan = PROTOCOL.plan(failure({K}, {A: records}, {S: worker(S)[0].record(), A: now}))
    assert plan.row == {K: 1}


def test_a_second_recovery_during_a_replay_restores_durable_receipts():
    """Its replay goes to 3 and has reached 0; only 1 is on disk."""
    _, records = of_three_receipts()
    replaying, _ = worker(incarnation=2, table={2: {A: Epoch(4)}}, records=records)
    survivors = {S: worker(S)[0].record(), A: replaying.record()}
    plan = PROTOCOL.plan(failure({K}, {A: records}, survivors, {2: {A: Epoch(4)}}, 3))
    assert plan.row == {A: 2, K: 1}
    assert [message.header[RECEIVED_IN] for message in plan.parts[A].replay] == [1]


def test_an_undone_receipt_of_a_valid_batch_is_not_replayed():
    _, records = of_three_receipts(flush_after=3)
    survivors = {S: worker(S)[0].record(), K: sink(0, 0)}
    plan = PROTOCOL.plan(failure({A}, {A: records}, survivors, {2: {A: Epoch(3)}}, 3))
    assert [message.seq for message in plan.parts[A].replay] == [1, 2]


def test_receipts_after_a_gap_cannot_be_replayed():
    """A checkpoint at 3 replaced the log of 1 and 2; a recovery undid the checkpoint, and not the batch of 4."""
    machine, _ = worker()
    for seq in (1, 2, 3, 4):
        machine.handle(received(seq))
    store, _ = flushed(machine)
    batch = {**store.record, "log": store.record["log"][3:]}
    undone = {**machine.record(), "incarnation": 1, "index": 3}
    found = rebuildable(A, {batch_key(4): batch, checkpoint_key(3): undone}, Incarnation(2), {2: {A: Epoch(3)}})
    assert (found.checkpoints, list(found.intervals)) == ({}, [0])
    found = rebuildable(A, {batch_key(4): batch}, Incarnation(1), {})
    assert (list(found.receipts), list(found.intervals)) == ([4], [0])
