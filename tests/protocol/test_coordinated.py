"""All processes that a checkpoint depends on take one together or none, and send no message until the decision."""

from __future__ import annotations

import pytest

from checkpoint_protocols.checkpoints.coordinated import CoordinatedPhase, CoordinatedWorker, initiators, plan
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.ids import Epoch, ProcessId, TimerId
from checkpoint_protocols.machine import Effect, InvalidTransition, missing_cells
from checkpoint_protocols.recovery import Failure, Record, Records, checkpoint_key
from checkpoint_protocols.vocabulary import (
    OUT,
    AppSent,
    CaptureState,
    Deliver,
    Drop,
    Erase,
    Hold,
    Note,
    Release,
    Send,
    SetTimer,
    SinkTransaction,
    Stored,
    StoreRecord,
    TimerElapsed,
)
from tests.protocol.plain import JOIN, SECOND, START, J, K, S, T, all_of, app, birth, control_message, only, tokens

TICK = TimerElapsed("checkpoint", TimerId(1), 1_000)
INSTANCE = "k/1/1"
TENTATIVE, DECISION, PERMANENT = "tentative 1", "decision 1", "permanent 1"
P = CoordinatedPhase


def kinds(effects: list[Effect]) -> list[tuple[str, str]]:
    """Target and kind of every sent message."""
    return [(send.message.target, send.message.kind) for send in all_of(Send, effects)]


def body(effects: list[Effect]) -> object:
    return only(Send, effects).message.body


def initiator() -> CoordinatedWorker:
    """Process k after one message of j."""
    machine = CoordinatedWorker(birth(K))
    machine.handle(START)
    machine.handle(app(J, K, 1))
    return machine


def participant() -> CoordinatedWorker:
    """Process j after a message of s and one to k."""
    machine = CoordinatedWorker(birth(J))
    machine.handle(START)
    machine.handle(app(S, J, 1))
    machine.handle(AppSent(JOIN.outputs[J][0], "x"))
    return machine


def request(instance: str = INSTANCE, last: int = 1) -> object:
    return control_message(K, J, "request", instance=instance, last=last)


def asked() -> CoordinatedWorker:
    machine = participant()
    machine.handle(request())  # type: ignore[arg-type]
    return machine


def voted() -> CoordinatedWorker:
    machine = asked()
    machine.handle(Stored(TENTATIVE, ok=True))
    machine.handle(control_message(S, J, "vote", instance=INSTANCE, agreed=True, participants=["s"]))
    assert machine.phase is P.VOTED
    return machine


def deciding() -> CoordinatedWorker:
    machine = initiator()
    machine.handle(TICK)
    machine.handle(Stored(TENTATIVE, ok=True))
    machine.handle(control_message(J, K, "vote", instance=INSTANCE, agreed=True, participants=["j", "s"]))
    assert machine.phase is P.DECIDING
    return machine


def decide(target: ProcessId = J, make: bool = True, instance: str = INSTANCE) -> object:
    return control_message(K, target, "decide", instance=instance, make=make)


def test_the_table_decides_every_pair_of_phase_and_event() -> None:
    assert missing_cells(CoordinatedWorker) == []
    assert all(set(cells) == set(P) - {P.BORN} for cells in CoordinatedWorker.MESSAGES.values())


def test_an_initiator_captures_holds_its_sends_and_asks_its_senders() -> None:
    effects = initiator().handle(TICK)

    assert [type(effect) for effect in effects] == [CaptureState, Hold, StoreRecord, Send, SetTimer, SetTimer]
    assert kinds(effects) == [("j", "request")]
    assert body(effects) == {"instance": INSTANCE, "last": 1}


def test_a_process_initiates_once_from_one_state() -> None:
    machine = CoordinatedWorker(birth(K))
    machine.handle(START)

    assert all_of(CaptureState, machine.handle(TICK)) == []


def test_a_process_without_new_sends_agrees_without_a_checkpoint() -> None:
    effects = participant().handle(request(last=0))  # type: ignore[arg-type]

    assert body(effects) == {"instance": INSTANCE, "agreed": True, "participants": []}
    assert all_of(CaptureState, effects) == []


def test_a_participant_votes_after_its_checkpoint_is_stored_and_its_senders_voted() -> None:
    machine = asked()
    assert machine.handle(Stored(TENTATIVE, ok=True)) == []

    effects = machine.handle(control_message(S, J, "vote", instance=INSTANCE, agreed=True, participants=["s"]))

    assert body(effects) == {"instance": INSTANCE, "agreed": True, "participants": ["j", "s"]}


def test_a_checkpoint_that_cannot_be_stored_is_a_vote_against() -> None:
    machine = asked()
    machine.handle(control_message(S, J, "vote", instance=INSTANCE, agreed=True, participants=["s"]))

    assert body(machine.handle(Stored(TENTATIVE, ok=False)))["agreed"] is False  # type: ignore[index]


@pytest.mark.parametrize(("instance", "agreed"), [(INSTANCE, True), ("l/1/1", False)])
def test_a_second_request_is_agreed_in_the_same_instance_and_refused_in_another(instance: str, agreed: bool) -> None:
    effects = asked().handle(request(instance))  # type: ignore[arg-type]

    assert body(effects) == {"instance": instance, "agreed": agreed, "participants": []}


def test_messages_are_received_but_not_sent_while_tentative() -> None:
    machine = asked()

    assert machine.handle(app(T, J, 1)) == [Deliver(app(T, J, 1))]
    with pytest.raises(InvalidTransition, match="not allowed"):
        machine.handle(AppSent(JOIN.outputs[J][0], "y"))


def test_a_decision_is_sent_after_it_is_durable() -> None:
    machine = deciding()

    effects = machine.handle(Stored(DECISION, ok=True))

    assert kinds(effects) == [("j", "decide"), ("s", "decide")]
    assert only(Note, effects) == Note("complete", INSTANCE)
    assert tokens(effects) == [PERMANENT]
    assert only(SinkTransaction, effects).last == 1
    assert Release(OUT) in effects


def test_a_decision_that_could_not_be_stored_aborts() -> None:
    effects = deciding().handle(Stored(DECISION, ok=False))

    assert only(Note, effects) == Note("aborted", INSTANCE)
    assert only(Erase, effects).keys == (checkpoint_key(1),)
    assert kinds(effects) == [("j", "decide")]


def test_a_vote_against_aborts_the_instance_of_all_who_were_asked() -> None:
    machine = initiator()
    machine.handle(TICK)
    machine.handle(Stored(TENTATIVE, ok=True))

    effects = machine.handle(control_message(J, K, "vote", instance=INSTANCE, agreed=False, participants=["j"]))

    assert body(effects) == {"instance": INSTANCE, "make": False}
    assert machine.phase is P.FREE


def test_an_initiator_times_out_once_and_only_while_votes_are_missing() -> None:
    machine = initiator()
    patience = all_of(SetTimer, machine.handle(TICK))[0].elapsed

    assert only(Note, machine.handle(patience)) == Note("aborted", INSTANCE)
    assert all_of(Drop, machine.handle(patience))
    assert all_of(Drop, deciding().handle(patience))


def test_a_late_vote_is_answered_with_the_abort() -> None:
    machine = initiator()
    late = control_message(J, K, "vote", instance=INSTANCE, agreed=True, participants=["j"])

    assert body(machine.handle(late)) == {"instance": INSTANCE, "make": False}
    machine.handle(TICK)
    other = control_message(J, K, "vote", instance="k/1/0", agreed=True, participants=["j"])
    assert body(machine.handle(other)) == {"instance": "k/1/0", "make": False}


def test_a_process_joins_an_instance_once_despite_late_requests() -> None:
    machine = asked()
    machine.handle(decide(make=False))  # type: ignore[arg-type]

    effects = machine.handle(request())  # type: ignore[arg-type]

    assert body(effects) == {"instance": INSTANCE, "agreed": False, "participants": []}
    assert (machine.phase, all_of(CaptureState, effects)) == (P.FREE, [])


def test_an_abort_that_overtakes_its_request_is_remembered() -> None:
    machine = participant()
    machine.handle(decide(make=False))  # type: ignore[arg-type]

    assert body(machine.handle(request()))["agreed"] is False  # type: ignore[index,arg-type]


@pytest.mark.parametrize(("aborted", "requested"), [("k/1/2", "k/1/1"), ("k/1/10", "k/1/9"), ("k/2/1", "k/1/7")])
def test_an_initiators_older_instances_end_with_a_newer_one(aborted: str, requested: str) -> None:
    machine = participant()
    machine.handle(decide(make=False, instance=aborted))  # type: ignore[arg-type]

    assert body(machine.handle(request(requested)))["agreed"] is False  # type: ignore[index,arg-type]


def test_an_older_abort_does_not_hide_a_newer_one() -> None:
    machine = participant()
    for instance in ("k/1/2", INSTANCE):
        machine.handle(decide(make=False, instance=instance))  # type: ignore[arg-type]

    assert body(machine.handle(request("k/1/2")))["agreed"] is False  # type: ignore[index,arg-type]


@pytest.mark.parametrize("instance", ["k/1/2", "k/2/1", "t/1/1"])
def test_a_later_instance_and_one_of_another_initiator_are_joined(instance: str) -> None:
    machine = asked()
    machine.handle(decide(make=False))  # type: ignore[arg-type]

    assert only(CaptureState, machine.handle(request(instance))).index == 2  # type: ignore[arg-type]


def test_a_process_without_new_sends_agrees_after_the_instance_ended_too() -> None:
    machine = asked()
    machine.handle(decide(make=False))  # type: ignore[arg-type]

    assert body(machine.handle(request(last=0)))["agreed"] is True  # type: ignore[index,arg-type]


def test_an_initiator_does_not_join_an_instance_that_it_aborted() -> None:
    machine = CoordinatedWorker(birth(J, options={"initiators": ["j"]}))
    for event in (START, app(S, J, 1), AppSent(JOIN.outputs[J][0], "x")):
        machine.handle(event)
    machine.handle(all_of(SetTimer, machine.handle(TICK))[0].elapsed)

    assert body(machine.handle(request("j/1/1")))["agreed"] is False  # type: ignore[index,arg-type]


def test_a_late_abort_does_not_change_the_next_checkpoint() -> None:
    machine = asked()
    machine.handle(decide(make=False))  # type: ignore[arg-type]
    machine.handle(request())  # type: ignore[arg-type]
    machine.handle(request("k/1/2"))  # type: ignore[arg-type]

    effects = machine.handle(decide(make=False))  # type: ignore[arg-type]

    assert [type(effect) for effect in effects] == [Drop]
    assert machine.tentative is not None
    assert (machine.tentative.index, machine.tentative.instance) == (2, "k/1/2")


@pytest.mark.parametrize("instance", ["k/1/0", "t/1/1"])
def test_while_the_decision_is_stored_messages_of_other_instances_change_nothing(instance: str) -> None:
    machine = deciding()

    late = machine.handle(control_message(J, K, "vote", instance=instance, agreed=True, participants=["j"]))
    assert body(late) == {"instance": instance, "make": False}
    assert all_of(Drop, machine.handle(control_message(T, K, "decide", instance=instance, make=False)))
    assert tokens(machine.handle(Stored(DECISION, ok=True))) == [PERMANENT]


def test_a_late_vote_of_another_instance_is_answered_while_voted() -> None:
    machine = voted()

    late = machine.handle(control_message(S, J, "vote", instance="k/1/0", agreed=True, participants=["s"]))

    assert body(late) == {"instance": "k/1/0", "make": False}
    assert machine.phase is P.VOTED


def test_a_tentative_record_that_lands_after_the_abort_is_erased() -> None:
    machine = asked()
    machine.handle(decide(make=False))  # type: ignore[arg-type]

    assert machine.handle(Stored(TENTATIVE, ok=True)) == [Erase((checkpoint_key(1),))]


def test_a_checkpoint_is_marked_permanent_before_older_ones_are_erased_and_the_initiator_is_notified() -> None:
    machine = voted()
    made = machine.handle(decide())  # type: ignore[arg-type]
    assert tokens(made) == [PERMANENT]
    assert kinds(made) == []
    assert tokens(machine.handle(Stored(PERMANENT, ok=False))) == [PERMANENT]

    assert kinds(machine.handle(Stored(PERMANENT, ok=True))) == [("k", "done")]


def test_a_decision_is_erased_after_all_have_marked_its_checkpoint() -> None:
    machine = deciding()
    machine.handle(Stored(DECISION, ok=True))
    for peer in (J, S):
        assert machine.handle(control_message(peer, K, "done", instance=INSTANCE)) == []

    assert only(Erase, machine.handle(Stored(PERMANENT, ok=True))).keys == (("commit", INSTANCE),)
    assert machine.handle(control_message(J, K, "done", instance=INSTANCE)) == []


def test_a_repeated_decision_is_answered_when_the_mark_is_durable() -> None:
    machine = voted()
    machine.handle(decide())  # type: ignore[arg-type]
    assert all_of(Drop, machine.handle(decide()))  # type: ignore[arg-type]
    machine.handle(Stored(PERMANENT, ok=True))

    assert kinds(machine.handle(decide())) == [("k", "done")]  # type: ignore[arg-type]
    assert all_of(Drop, machine.handle(decide(make=False)))  # type: ignore[arg-type]


def test_a_decision_of_another_instance_is_dropped() -> None:
    machine = voted()

    assert all_of(Drop, machine.handle(decide(make=False, instance="l/1/1")))  # type: ignore[arg-type]
    assert machine.phase is P.VOTED


def test_a_decision_before_the_vote_breaks_the_protocol() -> None:
    with pytest.raises(InvalidTransition, match="has not voted"):
        asked().handle(decide())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("event", "why"), [(control_message(K, J, "hello"), "no such message"), (app(S, J, 3), "1 was the newest")]
)
def test_an_event_that_no_correct_peer_or_host_sends_is_refused(event: object, why: str) -> None:
    with pytest.raises(InvalidTransition, match=why):
        participant().handle(event)  # type: ignore[arg-type]


def test_an_incarnation_that_begins_tentative_asks_the_initiator_and_holds_its_sends() -> None:
    machine = CoordinatedWorker(birth(J, checkpoint=voted().record(), table={SECOND: {T: Epoch(0)}}))

    effects = machine.handle(START)

    assert kinds(effects) == [("k", "ask")]
    assert Hold(OUT) in effects


def test_an_initiator_answers_by_its_durable_decision() -> None:
    record: Record = {"incarnation": 1, "index": 1, "participants": ["j", "k"]}
    knows = CoordinatedWorker(birth(K, records={("commit", INSTANCE): record}, table={SECOND: {K: Epoch(0)}}))
    assert kinds(knows.handle(START)) == [("j", "decide")]
    ask = control_message(J, K, "ask", 2, instance=INSTANCE)
    assert body(knows.handle(ask)) == {"instance": INSTANCE, "make": True}

    forgot = CoordinatedWorker(birth(K, table={SECOND: {K: Epoch(0)}}))
    forgot.handle(START)
    assert body(forgot.handle(ask)) == {"instance": INSTANCE, "make": False}


def test_an_initiator_that_begins_tentative_goes_by_its_decision_record() -> None:
    machine = deciding()
    now = machine.record()
    stored = machine.tentative.record  # type: ignore[union-attr]
    commit: Record = {"incarnation": 1, "index": 1, "participants": ["j", "k", "s"]}
    records: Records = {checkpoint_key(1): stored, ("commit", INSTANCE): commit}  # type: ignore[dict-item]
    table = {SECOND: {T: Epoch(0)}}

    made = CoordinatedWorker(birth(K, checkpoint=now, records=records, table=table))
    assert tokens(made.handle(START)) == [PERMANENT]
    undone = CoordinatedWorker(birth(K, checkpoint=now, table=table))
    assert all_of(Note, undone.handle(START)) == [Note("aborted", INSTANCE)]


def test_a_tentative_checkpoint_of_a_decided_instance_counts_and_is_marked_by_the_next_incarnation() -> None:
    machine = voted()
    stored = machine.tentative.record  # type: ignore[union-attr]
    commit: Record = {"incarnation": 1, "index": 1, "participants": ["j", "k"]}
    mine: Records = {checkpoint_key(1): stored}  # type: ignore[dict-item]
    survivors = {process: CoordinatedWorker(birth(process)).record() for process in (S, T, K)}
    everybody: dict[ProcessId, Records] = {S: {}, T: {}, J: mine, K: {("commit", INSTANCE): commit}}

    decided = plan(Failure(JOIN, SECOND, {}, frozenset({J}), everybody, survivors))
    assert (decided.row, decided.parts[J].checkpoint) == ({J: 1}, checkpoint_key(1))
    undecided = plan(Failure(JOIN, SECOND, {}, frozenset({J}), {**everybody, K: {}}, survivors))
    assert (undecided.row, undecided.parts[J].initial) == ({J: 0}, True)

    restarted = CoordinatedWorker(birth(J, checkpoint=stored, records=mine, table={SECOND: {J: Epoch(1)}}))
    assert tokens(restarted.handle(START)) == [PERMANENT]


def test_a_receiver_of_an_undone_message_rolls_back_too_and_says_why() -> None:
    survivors = {S: participant().record(), T: CoordinatedWorker(birth(T)).record(), K: initiator().record()}
    nothing: dict[ProcessId, Records] = {process: {} for process in JOIN.processes}

    decided = plan(Failure(JOIN, SECOND, {}, frozenset({J}), nothing, survivors))

    assert decided.row == {J: 0, K: 0}
    assert decided.parts[K].because == "it received from j what that has not sent any more"
    assert not decided.parts[S].initial


def test_every_process_is_asked_by_some_initiator() -> None:
    loop = Graph("dead end", (("s", "a"), ("a", "k"), ("a", "b"), ("b", "b2"), ("b2", "b")))

    assert initiators(JOIN) == {K}
    assert initiators(loop) == {ProcessId("k"), ProcessId("b2")}
    chosen = CoordinatedWorker(birth(J, options={"initiators": ["j"]}))
    assert chosen.initiates
