"""Rows that a sink loses, repeats, reorders or publishes too early are found, under every protocol.

Each bug is planted in every protocol of the menu: in the host, or around the machines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import checkpoint_lab as sim
from checkpoint_lab.message_world import MessageWorld
from checkpoint_lab.process import Process, SinkPublication
from checkpoint_lab.schedules import ScheduleOutcome, drive
from checkpoint_lab.violations import Violation
from checkpoint_protocols.machine import Effect, Event
from checkpoint_protocols.menu import MENU
from checkpoint_protocols.message_machine import AnyMessageMachine
from checkpoint_protocols.recovery import Birth, Protocol
from checkpoint_protocols.vocabulary import Deliver, SinkTransaction

SOUND = [protocol for protocol in MENU.values() if protocol.sound]
SEEDS = 60
"""Schedules until a bug counts as missed; most are found in the first."""

every_protocol = pytest.mark.parametrize("protocol", SOUND, ids=lambda protocol: protocol.name)


def condemned(
    protocol: Protocol, oracle: str, world: type[MessageWorld] = MessageWorld, graph: str = "fan_out"
) -> ScheduleOutcome | None:
    """The first schedule that the oracle condemns."""
    for seed in range(SEEDS):
        outcome = drive(world(protocol, sim.GRAPHS[graph], sim.Faults()), seed)
        if isinstance(outcome.error, Violation) and oracle == outcome.error.ORACLE:
            return outcome
    return None


# -- hosts -------------------------------------------------------------------------------------------------------------


class Vanishing(MessageWorld):
    """The sink answers and publishes nothing."""

    def publish(self, process: Process) -> SinkPublication:
        return process.publishing.pop(0)


class Doubling(MessageWorld):
    """Every row is published twice."""

    def publish(self, process: Process) -> SinkPublication:
        process.publishing.insert(0, process.publishing[0])
        super().publish(process)
        return super().publish(process)


class Reversing(MessageWorld):
    """The rows of a transaction are published backwards."""

    def publish(self, process: Process) -> SinkPublication:
        first = process.publishing[0]
        process.publishing[0] = first._replace(rows=first.rows[::-1], names=first.names[::-1])
        return super().publish(process)


class Overtaking(MessageWorld):
    """A later transaction is published before an earlier one."""

    def publish(self, process: Process) -> SinkPublication:
        process.publishing.append(process.publishing.pop(0))
        return super().publish(process)


@every_protocol
@pytest.mark.parametrize(("world", "oracle"), [(Vanishing, "O16"), (Doubling, "O14"), (Reversing, "O15")])
def test_a_wrong_sink_is_found(protocol: Protocol, world: type[MessageWorld], oracle: str) -> None:
    assert condemned(protocol, oracle, world)


def test_transactions_that_overtake_each_other_are_found() -> None:
    assert condemned(MENU["synchronous-logging"], "O15", Overtaking)


# -- machines ----------------------------------------------------------------------------------------------------------


Change = Callable[[AnyMessageMachine, list[Effect]], list[Effect]]


def changed(protocol: Protocol, change: Change) -> Protocol:
    """The protocol with changed effects of its workers, without their invariants."""
    assert isinstance(protocol.worker, type)

    class Changed(protocol.worker):  # type: ignore[name-defined,misc]
        def handle(self, event: Event) -> list[Effect]:
            return change(self, super().handle(event))

        def _ensure(self, holds: bool, what: str) -> None:
            """Off, so that only the oracles can find the bug."""

    return replace(protocol, worker=Changed)


def shows_nothing(machine: AnyMessageMachine, effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if not isinstance(effect, SinkTransaction)]


def shows_everything_it_delivers(machine: AnyMessageMachine, effects: list[Effect]) -> list[Effect]:
    """Publish before a log or a checkpoint, so that a failure undoes published rows."""
    delivered = sum(isinstance(effect, Deliver) for effect in effects)
    if machine.graph.outputs[machine.me] or not delivered:
        return shows_nothing(machine, effects)
    first = getattr(machine, "published", 0)
    machine.published = first + delivered  # type: ignore[attr-defined]
    rest = shows_nothing(machine, effects)
    return [*rest, SinkTransaction(f"early {first}", first, first + delivered)]


def shows_more_rows(machine: AnyMessageMachine, effects: list[Effect]) -> list[Effect]:
    """A sink publishes rows that it has not received."""
    return [
        replace(effect, last=effect.last + 100) if isinstance(effect, SinkTransaction) else effect for effect in effects
    ]


def shows_where_nobody_looks(machine: AnyMessageMachine, effects: list[Effect]) -> list[Effect]:
    """Processes that are no sinks publish their deliveries."""
    delivered = any(isinstance(effect, Deliver) for effect in effects)
    if not machine.graph.outputs[machine.me] or not delivered:
        return effects
    return [*effects, SinkTransaction("nobody looks", 0, 1)]


def forgetful(protocol: Protocol) -> Protocol:
    """An incarnation starts without its sink's number of published rows."""

    def worker(birth: Birth) -> AnyMessageMachine:
        return protocol.worker(replace(birth, shown=0))

    return replace(protocol, worker=worker)


@every_protocol
def test_a_sink_that_publishes_nothing_is_found(protocol: Protocol) -> None:
    assert condemned(changed(protocol, shows_nothing), "O16")


@every_protocol
def test_rows_that_are_published_at_once_and_undone_later_are_found(protocol: Protocol) -> None:
    """Synchronous logging delivers only durable messages, so there O14 finds it: a restart publishes again."""
    found = [condemned(changed(protocol, shows_everything_it_delivers), oracle) for oracle in ("O11", "O14")]

    assert any(found)


@every_protocol
def test_rows_that_a_sink_does_not_have_are_found(protocol: Protocol) -> None:
    outcome = sim.run(changed(protocol, shows_more_rows), sim.GRAPHS["pair"], 0, faults=sim.NO_FAULTS)

    assert "O11: k shows rows 1.." in str(outcome.error)


@every_protocol
def test_rows_of_a_process_that_is_no_sink_are_found(protocol: Protocol) -> None:
    planted = changed(protocol, shows_where_nobody_looks)

    assert condemned(planted, "O16") or condemned(planted, "O11")


@every_protocol
def test_an_incarnation_that_forgets_published_rows_is_found(protocol: Protocol) -> None:
    assert condemned(forgetful(protocol), "O14")


@every_protocol
def test_the_same_protocols_without_a_bug_are_sound(protocol: Protocol) -> None:
    def same(machine: AnyMessageMachine, effects: list[Effect]) -> list[Effect]:
        return effects

    outcomes = [drive(MessageWorld(changed(protocol, same), sim.GRAPHS["fan_out"]), seed) for seed in range(20)]

    assert [outcome.error for outcome in outcomes if not outcome.ok] == []
    assert all(outcome.counts["rows shown"] == 6 for outcome in outcomes)
