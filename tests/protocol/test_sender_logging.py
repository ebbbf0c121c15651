"""Receivers number messages and senders log them; a process sends nothing that depends on a receipt without a log."""

from __future__ import annotations

import pytest

from checkpoint_protocols.ids import Epoch, TimerId
from checkpoint_protocols.machine import Effect, InvalidTransition, InvariantBroken, ProtocolViolation, missing_cells
from checkpoint_protocols.message_logging.sender_log import is_receipt, log_key
from checkpoint_protocols.message_logging.sender_logging import SenderLoggingWorker, SenderPhase, plan
from checkpoint_protocols.recovery import Failure, Record, Records, checkpoint_key
from checkpoint_protocols.vocabulary import (
    OUT,
    AppSent,
    CaptureState,
    Deliver,
    Drop,
    Erase,
    Hold,
    Json,
    Note,
    Release,
    Send,
    SetTimer,
    SinkTransaction,
    Stored,
    StoreRecord,
    TimerElapsed,
)
from tests.protocol.plain import (
    FIRST,
    JOIN,
    SECOND,
    START,
    THIRD,
    J,
    K,
    S,
    T,
    all_of,
    app,
    birth,
    control_message,
    only,
    tokens,
)

TICK = TimerElapsed("checkpoint", TimerId(1), 1_000)
AGAIN = TimerElapsed("repeat", TimerId(2), 10_000)
S_TO_J, T_TO_J, J_TO_K = JOIN.channels
VOLATILE: dict[str, Json] = {"log": "volatile"}
STRICT: dict[str, Json] = {"block": "receipts"}
LOGGED = "log/s->j/000000000001/000000000007"


def receiver(options: dict[str, Json] | None = None) -> SenderLoggingWorker:
    machine = SenderLoggingWorker(birth(J, options))
    machine.handle(START)
    return machine


def sender(options: dict[str, Json] | None = None) -> SenderLoggingWorker:
    """Process s after one sent message."""
    machine = SenderLoggingWorker(birth(S, options))
    machine.handle(START)
    machine.handle(AppSent(S_TO_J, "s.1"))
    return machine


def ack(seq: int = 1, rsn: int = 7, incarnation: int = 1) -> object:
    return control_message(J, S, "ack", incarnation, channel=S_TO_J, seq=seq, rsn=rsn)


def ackack(rsn: int) -> object:
    return control_message(S, J, "ackack", rsn=rsn)


def answers_in(effects: list[Effect]) -> list[tuple[str, object]]:
    """Kind and body of the protocol's messages."""
    return [(each.message.kind, each.message.body) for each in all_of(Send, effects) if each.message.kind != "app"]


def events(effects: list[Effect]) -> list[object]:
    return [effect.event for effect in all_of(Deliver, effects)]


def numbered(channel: str, seq: int, rsn: int) -> tuple[str, object]:
    return ("ack", {"channel": channel, "seq": seq, "rsn": rsn})


# -- receivers -----------------------------------------------------------------------------------------------------


def test_the_table_decides_every_pair_of_phase_and_event() -> None:
    assert missing_cells(SenderLoggingWorker) == []


def test_one_counter_numbers_the_messages_of_all_senders() -> None:
    """Erratum E12."""
    machine = receiver()

    assert answers_in(machine.handle(app(T, J, 1))) == [numbered(T_TO_J, 1, 1)]
    assert answers_in(machine.handle(app(S, J, 1))) == [numbered(S_TO_J, 1, 2)]


def test_the_gate_closes_before_a_delivery_and_opens_when_every_receipt_is_logged() -> None:
    machine = receiver()

    answered = machine.handle(app(S, J, 1))
    effects = [type(effect) for effect in answered]
    assert Note("gated") in answered
    assert effects.index(Hold) < effects.index(Deliver)
    machine.handle(app(S, J, 2))
    assert machine.handle(ackack(2)) == []  # type: ignore[arg-type]
    assert machine.handle(ackack(1)) == [Release(OUT)]  # type: ignore[arg-type]
    assert machine.handle(ackack(1)) == []  # type: ignore[arg-type]


def test_nothing_is_sent_through_a_closed_gate() -> None:
    machine = receiver()
    machine.handle(app(S, J, 1))

    with pytest.raises(InvalidTransition, match="not allowed"):
        machine.handle(AppSent(J_TO_K, "x"))


def test_a_message_that_overtook_another_is_delivered_after_it_and_once() -> None:
    machine = receiver()

    assert machine.handle(app(S, J, 2)) == []
    assert all_of(Drop, machine.handle(app(S, J, 2)))
    assert events(machine.handle(app(S, J, 1))) == [app(S, J, 1), app(S, J, 2)]


def test_a_repeated_message_is_answered_with_its_first_number() -> None:
    machine = receiver()
    machine.handle(app(S, J, 1))

    effects = machine.handle(app(S, J, 1))

    assert answers_in(effects) == [numbered(S_TO_J, 1, 1)]
    assert events(effects) == []


def test_the_stricter_variant_receives_one_message_at_a_time() -> None:
    machine = receiver(STRICT)
    machine.handle(app(S, J, 2))

    effects = machine.handle(app(S, J, 1))
    assert [hold.channel for hold in all_of(Hold, effects)] == [OUT, S_TO_J, T_TO_J]
    assert events(effects) == [app(S, J, 1)]
    with pytest.raises(InvalidTransition, match="inputs are held"):
        machine.handle(app(T, J, 1))
    assert events(machine.handle(ackack(1))) == [app(S, J, 2)]  # type: ignore[arg-type]
    assert [each.channel for each in all_of(Release, machine.handle(ackack(2)))] == [OUT, S_TO_J, T_TO_J]  # type: ignore[arg-type]


def test_a_durable_checkpoint_opens_the_gate_and_lets_senders_erase_their_logs() -> None:
    machine = receiver()
    machine.handle(app(S, J, 1))
    machine.handle(TICK)

    effects = machine.handle(Stored("checkpoint/000000000001", ok=True))

    assert answers_in(effects) == [("covered", {"channel": S_TO_J, "last": 1})]
    assert Release(OUT) in effects
    assert answers_in(machine.handle(app(S, J, 1))) == [("covered", {"channel": S_TO_J, "last": 1})]


def test_a_source_takes_a_checkpoint_of_what_it_has_sent_once() -> None:
    machine = sender()

    assert only(CaptureState, machine.handle(TICK)).index == 1
    machine.handle(Stored("checkpoint/000000000001", ok=True))
    assert all_of(CaptureState, machine.handle(TICK)) == []


def test_an_answer_names_the_index_at_which_it_was_sent() -> None:
    """A process that has rolled back since can tell by the index whether the answer is undone."""
    machine = sender()
    machine.handle(ack())  # type: ignore[arg-type]
    answers = [*machine.handle(Stored(LOGGED, ok=True)), *receiver().handle(app(S, J, 1))]

    assert [send.message.index for send in all_of(Send, answers)] == [0, 1]


def test_a_checkpoint_that_could_not_be_stored_covers_nothing_and_is_stored_again() -> None:
    machine = receiver()
    machine.handle(app(S, J, 1))
    first = only(StoreRecord, machine.handle(TICK))

    assert machine.handle(Stored(first.token, ok=False)) == [first]


def test_a_checkpoint_erases_the_one_before() -> None:
    machine = receiver()
    for seq in (2, 3):
        machine.handle(app(S, J, seq - 1))
        machine.handle(TICK)
        erased = all_of(Erase, machine.handle(Stored(f"checkpoint/{seq - 1:012d}", ok=True)))

    assert erased == [Erase((checkpoint_key(1),))]


def test_an_incarnation_that_finds_two_checkpoints_erases_the_older() -> None:
    """The newer one became durable after the process had died."""
    machine = receiver()
    records = {}
    for seq in (1, 2):
        machine.handle(app(S, J, seq))
        store = only(StoreRecord, machine.handle(TICK))
        records[store.key] = store.record
        machine.handle(Stored(store.token, ok=True))
    again = SenderLoggingWorker(birth(J, checkpoint=records[checkpoint_key(2)], records=records))

    assert Erase((checkpoint_key(1),)) in again.handle(START)


def test_a_survivor_stores_again_a_checkpoint_whose_write_was_interrupted() -> None:
    machine = receiver()
    machine.handle(app(S, J, 1))
    machine.handle(TICK)
    again = SenderLoggingWorker(birth(J, checkpoint=machine.record(), table={SECOND: {}}))
    again.handle(START)

    assert only(StoreRecord, again.handle(TICK)).key == checkpoint_key(1)


def test_a_sink_publishes_messages_after_they_are_fully_logged() -> None:
    machine = SenderLoggingWorker(birth(K))
    machine.handle(START)
    machine.handle(app(J, K, 1))
    machine.handle(app(J, K, 2))

    assert all_of(SinkTransaction, machine.handle(control_message(J, K, "ackack", rsn=2))) == []
    shown = only(SinkTransaction, machine.handle(control_message(J, K, "ackack", rsn=1)))
    assert (shown.first, shown.last) == (0, 2)


# -- senders -------------------------------------------------------------------------------------------------------


def test_a_stable_log_answers_when_message_and_number_are_durable() -> None:
    machine = sender()

    store = only(StoreRecord, machine.handle(ack()))  # type: ignore[arg-type]
    assert machine.handle(ack()) == []  # type: ignore[arg-type]
    assert machine.handle(Stored(LOGGED, ok=False)) == [store]
    assert answers_in(machine.handle(Stored(LOGGED, ok=True))) == [("ackack", {"rsn": 7})]
    assert answers_in(machine.handle(ack())) == [("ackack", {"rsn": 7})]  # type: ignore[arg-type]


def test_a_volatile_log_answers_at_once() -> None:
    effects = sender(VOLATILE).handle(ack())  # type: ignore[arg-type]

    assert answers_in(effects) == [("ackack", {"rsn": 7})]
    assert tokens(effects) == []


def test_a_message_is_sent_again_until_it_is_acknowledged() -> None:
    machine = sender(VOLATILE)

    effects = machine.handle(AGAIN)
    assert [send.message.body for send in all_of(Send, effects)] == ["s.1"]
    assert only(SetTimer, effects).name == "repeat"
    machine.handle(ack())  # type: ignore[arg-type]
    assert machine.handle(AGAIN) == []


def test_a_sender_erases_covered_messages_and_still_answers() -> None:
    machine = sender()
    machine.handle(ack())  # type: ignore[arg-type]
    machine.handle(Stored(LOGGED, ok=True))
    covered = control_message(J, S, "covered", channel=S_TO_J, last=1)

    assert only(Erase, machine.handle(covered)).keys == (log_key(S_TO_J, 1, 7),)
    assert machine.handle(covered) == []
    assert answers_in(machine.handle(ack())) == [("ackack", {"rsn": 7})]  # type: ignore[arg-type]


@pytest.mark.parametrize(("ok", "erased"), [(True, [Erase((log_key(S_TO_J, 1, 7),))]), (False, [])])
def test_a_log_record_that_lands_after_the_checkpoint_that_covers_it_is_erased(ok: bool, erased: list[Effect]) -> None:
    machine = sender()
    machine.handle(ack())  # type: ignore[arg-type]
    machine.handle(control_message(J, S, "covered", channel=S_TO_J, last=1))

    assert machine.handle(Stored(LOGGED, ok=ok)) == erased


def test_a_number_waits_for_the_message_to_be_sent_again_unless_the_stable_log_has_it() -> None:
    """Otherwise both ends of a loop may replay and wait for each other."""
    machine = sender()
    machine.handle(ack())  # type: ignore[arg-type]
    records = {log_key(S_TO_J, 1, 7): _record_of(machine)}
    table = {SECOND: {J: Epoch(8)}}

    forgot = SenderLoggingWorker(birth(S, table=table))
    forgot.handle(START)
    assert all_of(Drop, forgot.handle(ack(incarnation=2)))  # type: ignore[arg-type]
    knows = SenderLoggingWorker(birth(S, records=records, table=table))
    knows.handle(START)
    assert answers_in(knows.handle(ack(incarnation=2))) == [("ackack", {"rsn": 7})]  # type: ignore[arg-type]


def _record_of(machine: SenderLoggingWorker) -> Record:
    again = machine.handle(Stored(LOGGED, ok=False))
    record = only(StoreRecord, again).record
    assert isinstance(record, dict)
    return record


# -- later incarnations --------------------------------------------------------------------------------------------


def test_a_number_that_a_recovery_undid_is_erased() -> None:
    machine = sender()
    machine.handle(ack())  # type: ignore[arg-type]
    records = {log_key(S_TO_J, 1, 7): _record_of(machine)}

    restarted = SenderLoggingWorker(
        birth(S, checkpoint=machine.record(), records=records, table={SECOND: {J: Epoch(7)}})
    )

    effects = restarted.handle(START)
    assert [send.message.body for send in all_of(Send, effects)] == ["s.1"]
    assert only(Erase, effects).keys == (log_key(S_TO_J, 1, 7),)


@pytest.mark.parametrize(("row", "valid"), [({J: Epoch(7)}, False), ({J: Epoch(8)}, True), ({K: Epoch(1)}, True)])
def test_a_receipt_is_valid_until_a_recovery_restores_an_earlier_epoch(row: dict[object, Epoch], valid: bool) -> None:
    assert is_receipt(J, 7, FIRST, {SECOND: row}) is valid  # type: ignore[dict-item]
    assert is_receipt(J, 7, SECOND, {SECOND: row})  # type: ignore[dict-item]
    assert not is_receipt(J, 7, FIRST, {SECOND: Epoch(7)})


def test_a_survivor_repeats_unlogged_numbers_and_keeps_its_gate_closed() -> None:
    machine = receiver()
    machine.handle(app(T, J, 1))

    effects = SenderLoggingWorker(birth(J, checkpoint=machine.record(), table={SECOND: {K: Epoch(1)}})).handle(START)

    assert answers_in(effects) == [numbered(T_TO_J, 1, 1)]
    assert Hold(OUT) in effects


def test_messages_of_a_failed_sender_are_taken_from_its_new_incarnation() -> None:
    """The new incarnation cannot log a receipt of a message that it has not sent again."""
    before = receiver()
    before.handle(app(S, J, 2))
    table = {SECOND: {S: Epoch(1)}}
    machine = SenderLoggingWorker(birth(J, checkpoint=before.record(), table=table))

    assert all_of(Drop, machine.handle(START))[0].event == app(S, J, 2)
    assert all_of(Drop, machine.handle(app(S, J, 1)))
    assert events(machine.handle(app(S, J, 1, incarnation=2))) == [app(S, J, 1, incarnation=2)]


def failure(logs: dict[object, Record], failed: set[object], durable: Records | None = None) -> Failure:
    records: dict[object, Records] = {process: {} for process in JOIN.processes}
    records[S] = durable or {}
    return Failure(JOIN, SECOND, {}, frozenset(failed), records, logs)  # type: ignore[arg-type]


def test_the_replay_follows_the_receivers_order_up_to_the_first_gap() -> None:
    s, t = sender(VOLATILE), SenderLoggingWorker(birth(T, VOLATILE))
    t.handle(START)
    for seq, rsn in ((1, 1), (2, 4)):
        t.handle(AppSent(T_TO_J, f"t.{seq}"))
        t.handle(control_message(J, T, "ack", channel=T_TO_J, seq=seq, rsn=rsn))
    s.handle(ack(rsn=2))  # type: ignore[arg-type]

    decided = plan(failure({S: s.record(), T: t.record(), K: SenderLoggingWorker(birth(K)).record()}, {J}))

    assert [message.body for message in decided.parts[J].replay] == ["t.1", "s.1"]
    assert decided.row == {J: 3}


def test_a_stable_log_outlives_its_sender_and_a_volatile_one_is_lost() -> None:
    s, k = sender(), SenderLoggingWorker(birth(K))
    s.handle(ack(rsn=1))  # type: ignore[arg-type]
    record = only(StoreRecord, s.handle(Stored("log/s->j/000000000001/000000000001", ok=False))).record
    assert isinstance(record, dict)
    k.handle(START)
    k.handle(app(J, K, 1, index=1))
    logs: dict[object, Record] = {T: SenderLoggingWorker(birth(T)).record(), K: k.record()}

    both = plan(failure(logs, {S, J}, {log_key(S_TO_J, 1, 1): record}))
    assert [message.body for message in both.parts[J].replay] == ["s.1"]
    with pytest.raises(ProtocolViolation, match="k received what j sent after its receipt 1, which no process knows"):
        plan(failure(logs, {S, J}))


# -- refused events ------------------------------------------------------------------------------------------------


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(ProtocolViolation, match="option log is 'tape', not one of"):
        SenderLoggingWorker(birth(J, {"log": "tape"}))


@pytest.mark.parametrize(
    ("event", "why"),
    [(control_message(K, J, "hello"), "no such message"), (Stored("nothing", ok=True), "nothing of that name")],
)
def test_an_event_that_no_correct_peer_or_host_sends_is_refused(event: object, why: str) -> None:
    with pytest.raises(InvalidTransition, match=why):
        receiver().handle(event)  # type: ignore[arg-type]


def test_a_gate_that_is_open_over_an_unlogged_receipt_breaks_the_machines_invariant() -> None:
    machine = receiver()
    machine.handle(app(S, J, 1))
    machine.phase = SenderPhase.OPEN

    with pytest.raises(InvariantBroken, match="nothing goes out ahead of the log"):
        machine.handle(app(S, J, 1))


def test_a_third_incarnation_has_no_receipt_that_two_recoveries_undid() -> None:
    table = {SECOND: {J: Epoch(9)}, THIRD: {J: Epoch(7)}}

    assert not is_receipt(J, 7, FIRST, table)
    assert not is_receipt(J, 8, SECOND, table)
