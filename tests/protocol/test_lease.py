"""Machines of the checkpoint lease: replica and primary."""

from __future__ import annotations

from typing import Any

import pytest

from checkpoint_protocols.ids import ProcessId, TimerId
from checkpoint_protocols.lease.messages import (
    Admission,
    AppendLease,
    CheckpointFailed,
    CheckpointStarted,
    CheckpointWritten,
    Deposed,
    DiscardCheckpoint,
    Elected,
    EntryExecuted,
    HealthReport,
    HealthReported,
    Lease,
    LeaseChosen,
    LeasedCheckpoint,
    LeaseElapsed,
    LeaseReturned,
    LeaseSettings,
    PublishAnswered,
    PublishCheckpoint,
    RecordPayload,
    TakeCheckpoint,
    Terms,
    Ticked,
    Turn,
)
from checkpoint_protocols.lease.primary import Primary, PrimaryPhase
from checkpoint_protocols.lease.replica import Replica, ReplicaPhase
from checkpoint_protocols.lease.rotation import first_estimate
from checkpoint_protocols.machine import Drop, Effect, Event, InvalidTransition, InvariantBroken, Machine, missing_cells
from checkpoint_protocols.vocabulary import Note, SetTimer

A, B, C = ProcessId("a"), ProcessId("b"), ProcessId("c")
MEMBERS = (A, B, C)
SETTINGS = LeaseSettings(least_ms=100, first_ms=1_000, most_ms=4_000, margin_ms=50, fresh_ms=500, rounds=2)
FOR_B = Terms(B, 1, 10_000, 700, 1_000)
R, P = ReplicaPhase, PrimaryPhase


# -- replicas ----------------------------------------------------------------------------------------------------------


def replica(me: ProcessId = B, boot: int = 1) -> Replica:
    return Replica(me, boot, MEMBERS, LeasedCheckpoint())


def granted(terms: Terms = FOR_B) -> Replica:
    machine = replica()
    machine.handle(EntryExecuted(1, terms, 10_100))
    return machine


def taking() -> Replica:
    machine = granted()
    machine.handle(CheckpointStarted(1, 10_200))
    return machine


def publishing() -> Replica:
    machine = taking()
    machine.handle(CheckpointWritten(1, 10_300))
    return machine


def leading() -> Replica:
    machine = replica()
    machine.handle(Elected())
    return machine


REPLICAS = {
    R.FOLLOWING: replica,
    R.GRANTED: granted,
    R.TAKING: taking,
    R.PUBLISHING: publishing,
    R.LEADING: leading,
}

REPLICA_EVENTS: dict[type[Event], Event] = {
    EntryExecuted: EntryExecuted(2, None, 10_400),
    CheckpointStarted: CheckpointStarted(1, 10_400),
    CheckpointWritten: CheckpointWritten(1, 10_400),
    CheckpointFailed: CheckpointFailed(1),
    PublishAnswered: PublishAnswered(1, Admission.ACCEPTED),
    LeaseElapsed: LeaseElapsed(1),
    Elected: Elected(),
    Deposed: Deposed(),
}


def test_a_lease_for_this_incarnation_sets_a_timer_from_the_report_and_allows_a_checkpoint() -> None:
    machine = replica()

    effects = machine.handle(EntryExecuted(1, FOR_B, 10_100))

    assert effects == [SetTimer("lease", 600, TimerId(1), LeaseElapsed(1)), TakeCheckpoint(1, 10_700)]
    assert machine.may_take
    assert not machine.taking
    assert machine.until_ms == 10_700


@pytest.mark.parametrize(
    ("terms", "local_ms"),
    [(Terms(A, 1, 10_000, 700, 1_000), 10_100), (Terms(B, 2, 10_000, 700, 1_000), 10_100), (FOR_B, 10_700)],
    ids=["another process", "another incarnation", "too late"],
)
def test_any_other_lease_is_recorded_and_gives_no_right(terms: Terms, local_ms: int) -> None:
    machine = replica()

    assert machine.handle(EntryExecuted(1, terms, local_ms)) == []
    assert machine.phase is R.FOLLOWING
    assert machine.lease == Lease(1, terms)
    assert machine.until_ms is None


def test_a_primary_takes_no_checkpoint_under_a_lease_of_its_own() -> None:
    machine = leading()

    assert machine.handle(EntryExecuted(1, FOR_B, 10_100)) == []
    assert not machine.may_take


def test_entries_are_executed_in_order() -> None:
    with pytest.raises(InvalidTransition, match="0 entries are executed here"):
        replica().handle(EntryExecuted(2, None, 0))


def test_no_entry_is_executed_while_a_checkpoint_is_taken_or_published() -> None:
    assert [make().executes for make in (replica, granted, taking, publishing, leading)] == [
        True, True, False, False, True,
    ]  # fmt: skip
    with pytest.raises(InvalidTransition):
        taking().handle(EntryExecuted(2, None, 10_400))


def test_a_checkpoint_is_published_under_the_lease_and_with_its_covered_entries() -> None:
    machine = granted()
    machine.handle(EntryExecuted(2, None, 10_150))
    machine.handle(CheckpointStarted(1, 10_200))

    (published,) = machine.handle(CheckpointWritten(1, 10_300))

    assert isinstance(published, PublishCheckpoint)
    assert published.checkpoint == LeasedCheckpoint(1, 2, {A: Turn(1), B: Turn(0, 1_000), C: Turn(1)})


@pytest.mark.parametrize("admission", [Admission.ACCEPTED, Admission.REPEATED])
def test_the_payload_is_recorded_when_the_store_has_the_checkpoint(admission: Admission) -> None:
    machine = publishing()

    assert machine.handle(PublishAnswered(1, admission)) == [RecordPayload(1)]
    assert (machine.phase, machine.lease) == (R.FOLLOWING, None)


def test_a_fenced_holder_records_nothing() -> None:
    machine = publishing()

    assert machine.handle(PublishAnswered(1, Admission.FENCED))[0] == DiscardCheckpoint(1)
    assert machine.lease == Lease(1, FOR_B)


@pytest.mark.parametrize("make", [granted, taking, publishing])
def test_the_right_ends_at_its_deadline(make: Any) -> None:
    machine = make()

    assert machine.handle(LeaseElapsed(1))[0] == DiscardCheckpoint(1)
    assert machine.phase is R.FOLLOWING
    assert machine.lease == Lease(1, FOR_B)


@pytest.mark.parametrize(
    ("make", "event"), [(granted, CheckpointStarted(1, 10_700)), (taking, CheckpointWritten(1, 10_700))]
)
def test_a_paused_holder_notices_the_deadline_before_its_timer_does(make: Any, event: Event) -> None:
    assert make().handle(event)[0] == DiscardCheckpoint(1)


def test_a_checkpoint_that_fails_is_discarded() -> None:
    assert taking().handle(CheckpointFailed(1))[0] == DiscardCheckpoint(1)


def test_the_next_lease_in_the_log_ends_the_right_of_the_last() -> None:
    machine = granted()

    effects = machine.handle(EntryExecuted(2, Terms(C, 1, 0, 700, 1_000), 10_200))

    assert effects[0] == DiscardCheckpoint(1)
    assert machine.lease is not None
    assert machine.lease.token == 2


def test_an_elected_holder_gives_up_its_lease_for_good() -> None:
    machine = granted()

    assert machine.handle(Elected())[0] == DiscardCheckpoint(1)
    machine.handle(Deposed())
    assert [type(effect) for effect in machine.handle(CheckpointStarted(1, 10_300))] == [Drop]
    assert not machine.may_take


def test_an_event_of_an_earlier_lease_is_dropped() -> None:
    machine = taking()

    assert [type(effect) for effect in machine.handle(LeaseElapsed(0))] == [Drop]
    assert machine.taking


def test_a_new_incarnation_continues_from_the_checkpoint() -> None:
    machine = Replica(B, 2, MEMBERS, LeasedCheckpoint(1, 5, {A: Turn(3), B: Turn(0, 900), C: Turn(1)}))

    machine.handle(EntryExecuted(6, Terms(C, 1, 0, 700, 1_000), 0))

    assert machine.turns == {A: Turn(4), B: Turn(1, 900), C: Turn(0, 1_000)}


# -- primaries ---------------------------------------------------------------------------------------------------------


def primary(inherited: Lease | None = None, local_ms: int = 0) -> Primary:
    return Primary(A, 1, SETTINGS, inherited, dict.fromkeys(MEMBERS, Turn()), local_ms)


def hear(machine: Primary, node: ProcessId, at: int, clock_ms: int = 10_000, payload: int = 0) -> list[Effect]:
    return machine.handle(HealthReported(HealthReport(node, 1, clock_ms, payload), at))


def issuing() -> Primary:
    machine = primary()
    hear(machine, B, 100)
    machine.handle(Ticked(200, 0))
    return machine


def waiting() -> Primary:
    machine = issuing()
    machine.handle(LeaseChosen(Lease(1, FOR_B), 300))
    return machine


PRIMARIES = {P.FREE: primary, P.ISSUING: issuing, P.WAITING: waiting}
PRIMARY_EVENTS: dict[type[Event], Event] = {
    HealthReported: HealthReported(HealthReport(C, 1, 0, 0), 400),
    Ticked: Ticked(400, 0),
    LeaseChosen: LeaseChosen(Lease(1, FOR_B), 400),
    LeaseReturned: LeaseReturned(1),
}


def test_a_lease_names_incarnation_clock_and_time_of_its_holder() -> None:
    machine = primary()
    hear(machine, B, 100)

    assert machine.is_due(200)
    assert machine.handle(Ticked(200, 0)) == [AppendLease(FOR_B)]
    assert not machine.is_due(200)


def test_only_a_process_with_a_fresh_report_is_a_candidate() -> None:
    machine = primary()
    hear(machine, B, 100)

    assert machine.handle(Ticked(601, 0)) == []
    assert not machine.is_due(601)
    assert machine.candidates(600) == {B: 100}


def test_a_primary_is_no_candidate_itself() -> None:
    machine = primary()
    hear(machine, A, 100)

    assert machine.candidates(100) == {}


def test_a_primary_waits_for_an_append_without_an_answer() -> None:
    machine = issuing()

    assert machine.handle(Ticked(9_999, 0)) == []
    assert machine.phase is P.ISSUING


def test_a_lease_that_this_primary_did_not_append_is_refused() -> None:
    with pytest.raises(InvalidTransition, match="only the primary appends"):
        issuing().handle(LeaseChosen(Lease(1, Terms(C, 1, 0, 700, 1_000)), 300))


def test_a_lease_times_out_after_its_deadline_not_at_it() -> None:
    machine = waiting()
    hear(machine, C, 1_000)

    assert machine.handle(Ticked(1_300, 0)) == []
    assert not machine.is_due(1_300)
    assert machine.is_due(1_301)
    effects = machine.handle(Ticked(1_301, 0))
    assert effects == [Note("lease timed out", "b under 1"), AppendLease(Terms(C, 1, 10_000, 700, 1_000))]


def test_a_lease_times_out_without_other_candidates_too() -> None:
    machine = waiting()

    assert machine.handle(Ticked(5_000, 0)) == [Note("lease timed out", "b under 1")]
    assert (machine.phase, machine.estimate(B).ttl_ms) == (P.FREE, 2_000)


@pytest.mark.parametrize(("node", "payload"), [(B, 0), (C, 9)], ids=["before the lease", "not the holder"])
def test_other_payloads_do_not_end_the_lease(node: ProcessId, payload: int) -> None:
    machine = waiting()

    assert hear(machine, node, 400, 10_001, payload) == []
    assert machine.phase is P.WAITING


@pytest.mark.parametrize("payload", [1, 2], ids=["up to the lease", "beyond it"])
def test_a_payload_that_includes_the_lease_ends_it_and_is_measured_from_the_report(payload: int) -> None:
    machine = waiting()

    assert hear(machine, B, 400, 10_300, payload) == [Note("lease used", "b has published under 1")]
    assert machine.estimate(B) == first_estimate(0, SETTINGS).succeeded(300, SETTINGS)


def test_a_holder_can_use_a_lease_that_is_the_newest_entry() -> None:
    holder = publishing()
    (recorded,) = holder.handle(PublishAnswered(1, Admission.ACCEPTED))
    assert isinstance(recorded, RecordPayload)
    machine = waiting()

    assert hear(machine, B, 400, 10_300, recorded.payload) == [Note("lease used", "b has published under 1")]


def test_a_returned_lease_ends_at_once_and_leaves_the_estimate() -> None:
    machine = waiting()

    assert machine.handle(LeaseReturned(1)) == [Note("lease returned", "b will not use 1")]
    assert (machine.phase, machine.estimate(B)) == (P.FREE, first_estimate(0, SETTINGS))


def test_the_return_of_another_lease_does_not_end_this_one() -> None:
    machine = waiting()

    assert [type(effect) for effect in machine.handle(LeaseReturned(0))] == [Drop]
    assert machine.phase is P.WAITING


def test_a_new_primary_waits_the_whole_time_again_on_its_own_clock() -> None:
    machine = primary(Lease(7, FOR_B), local_ms=5_000)

    assert not machine.is_due(6_000)
    assert machine.is_due(6_001)


def test_a_new_primary_waits_for_a_lease_of_its_own_too() -> None:
    machine = primary(Lease(7, Terms(A, 1, 0, 700, 1_000)), local_ms=5_000)
    hear(machine, B, 5_000)

    assert machine.handle(Ticked(5_100, 0)) == []


def test_a_used_inherited_lease_leaves_the_estimate() -> None:
    machine = primary(Lease(7, FOR_B), local_ms=5_000)

    assert hear(machine, B, 5_100, payload=8) == [Note("lease used", "b has published under 7")]
    assert machine.estimate(B) == first_estimate(0, SETTINGS)


def test_a_late_report_does_not_undo_a_newer_one() -> None:
    machine = primary()
    hear(machine, B, 100, clock_ms=10_000)

    assert [type(effect) for effect in hear(machine, B, 200, clock_ms=9_000)] == [Drop]


def test_timeouts_in_a_row_at_the_longest_lease_raise_an_alert() -> None:
    machine, noted, at = primary(), [], 0
    for token in range(1, 7):
        hear(machine, B, at, clock_ms=10_000 + token)
        (append,) = [each for each in machine.handle(Ticked(at, 0)) if isinstance(each, AppendLease)]
        machine.handle(LeaseChosen(Lease(token, append.terms), at))
        at += append.terms.ttl_ms + 1
        noted.append([each.what for each in machine.handle(Ticked(at, 0)) if isinstance(each, Note)])

    assert noted == [["lease timed out"]] * 4 + [["lease timed out", "lease alert"]] * 2


# -- tables ------------------------------------------------------------------------------------------------------------

each_machine = pytest.mark.parametrize("machine", [Replica, Primary])


@each_machine
def test_the_tables_have_a_cell_for_every_phase_and_event(machine: type[Machine[Any]]) -> None:
    assert missing_cells(machine) == []
    assert set(machine.TABLE) == {(phase, event) for phase in machine.PHASES for event in machine.EVENTS}


CELLS = [
    *((REPLICAS[phase], phase, REPLICA_EVENTS[event], cell) for (phase, event), cell in Replica.TABLE.items()),
    *((PRIMARIES[phase], phase, PRIMARY_EVENTS[event], cell) for (phase, event), cell in Primary.TABLE.items()),
]  # type: ignore[index]


def outcome(make: Any, phase: Any, event: Event) -> str:
    machine = make()
    assert machine.phase is phase
    if machine.phase in (R.FOLLOWING, R.LEADING) and isinstance(event, EntryExecuted):
        event = EntryExecuted(1, None, 0)
    try:
        effects = machine.handle(event)
    except InvalidTransition:
        return "refused"
    return "dropped" if any(isinstance(effect, Drop) for effect in effects) else "handled"


def as_the_table_says(phase: Any, event: Event, cell: Any) -> str:
    """An event with the newest token that the table does not allow is refused, or dropped if no lease is held."""
    if isinstance(cell, str):
        return "handled"
    without_lease = phase in (R.FOLLOWING, R.LEADING, P.FREE, P.ISSUING)
    return "dropped" if hasattr(event, "token") and without_lease else "refused"


def test_every_cell_does_what_the_table_says() -> None:
    assert len(CELLS) > 50
    assert [
        (phase, event)
        for make, phase, event, cell in CELLS
        if outcome(make, phase, event) != as_the_table_says(phase, event, cell)
    ] == []


@pytest.mark.parametrize(
    ("machine", "name", "value"),
    [
        (replica(), "_right", Lease(1, FOR_B)),
        (granted(), "lease", None),
        (granted(), "me", C),
        (granted(), "boot", 2),
        (granted(), "applied", 0),
        (waiting(), "lease", None),
        (issuing(), "asked", None),
        (issuing(), "me", B),
    ],
)
def test_a_broken_invariant_is_noticed(machine: Machine[Any], name: str, value: object) -> None:
    setattr(machine, name, value)

    with pytest.raises(InvariantBroken):
        machine.validate()
