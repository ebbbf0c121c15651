"""Rules of the package: total tables, one mutating method, no side effects, errors with recent events."""

from __future__ import annotations

import ast
import copy
import inspect
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

import checkpoint_protocols.machine as machine_module
from checkpoint_protocols import vocabulary as v
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.ids import Incarnation, ProcessId
from checkpoint_protocols.lease.primary import Primary
from checkpoint_protocols.lease.replica import Replica
from checkpoint_protocols.machine import (
    IGNORE_STALE,
    INVALID,
    STORY_LENGTH,
    Effect,
    Event,
    InvalidTransition,
    InvariantBroken,
    Machine,
    missing_cells,
    rows,
)
from checkpoint_protocols.menu import MENU
from checkpoint_protocols.recovery import Birth, ProtocolSettings
from checkpoint_protocols.snapshots.acyclic import SnapshotTask

FOLDER = Path(machine_module.__file__).parent
ALLOWED = {"__future__", "abc", "collections", "dataclasses", "enum", "functools", "itertools", "typing"}

GRAPH = Graph("merge", (("s", "a"), ("t", "a"), ("a", "k")))


def birth(name: str = "a", incarnation: int = 1) -> Birth:
    """The `Birth` of a process's first incarnation."""
    return Birth(ProcessId(name), GRAPH, Incarnation(incarnation), {}, ProtocolSettings())


def roles() -> list[type[Machine[Any]]]:
    """All machines of the menu and of the lease."""
    makers = [maker for each in MENU.values() for maker in (each.worker, each.coordinator) if maker]
    return [*dict.fromkeys(type(maker(birth())) for maker in makers), Replica, Primary]


each_role = pytest.mark.parametrize("role", roles(), ids=lambda role: role.__name__)


@each_role
def test_every_phase_and_event_has_a_cell(role: type[Machine[Any]]) -> None:
    assert missing_cells(role) == []
    assert set(role.TABLE) == {(phase, event) for phase in role.PHASES for event in role.EVENTS}


@each_role
def test_every_cell_is_a_verdict_or_a_handler(role: type[Machine[Any]]) -> None:
    names = {cell for cell in role.TABLE.values() if isinstance(cell, str)}

    assert all(callable(getattr(role, name)) for name in names)
    assert {cell for cell in role.TABLE.values() if not isinstance(cell, str)} <= {IGNORE_STALE, INVALID}


@each_role
def test_every_handler_is_reached(role: type[Machine[Any]]) -> None:
    source = "".join(inspect.getsource(sys.modules[each.__module__]) for each in role.__mro__[:-1])

    assert [name for name in vars(role) if name.startswith("_on_") and source.count(name) < 2] == []


def test_a_missing_cell_is_found() -> None:
    class Holey(SnapshotTask):
        TABLE = dict(list(SnapshotTask.TABLE.items())[1:])  # noqa: RUF012 - a table like any other

    ((phase, event),) = missing_cells(Holey)
    assert (phase, event) == next(iter(SnapshotTask.TABLE))


def test_the_folder_imports_nothing_that_acts() -> None:
    wrong = {str(path.relative_to(FOLDER)): found for path in FOLDER.rglob("*.py") if (found := foreign_to(path))}
    assert wrong == {}


def foreign_to(path: Path) -> set[str]:
    """Imported modules that are neither of the package nor free of side effects."""
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")

    foreign = {name for name in imported if name.split(".")[0] not in ALLOWED}
    return {name for name in foreign if not name.startswith("checkpoint_protocols")}


def test_events_and_effects_are_values() -> None:
    kinds = [*Event.__subclasses__(), *Effect.__subclasses__()]

    assert len(kinds) > 40
    assert all(kind.__dataclass_params__.frozen and hasattr(kind, "__slots__") for kind in kinds)


def test_reading_a_machine_does_not_change_it() -> None:
    machine = SnapshotTask(birth())
    machine.handle(v.Commanded("start", {"local_ms": 0}))
    before = copy.deepcopy({name: value for name, value in vars(machine).items() if name != "recent"})
    _ = machine.story
    machine.validate()

    assert {name: value for name, value in vars(machine).items() if name != "recent"} == before


def test_an_error_lists_the_recent_events_only() -> None:
    machine = Listener(Only.PHASE, Incarnation(1))
    for number in range(1, 60):
        machine.handle(Heard(Incarnation(number)))

    with pytest.raises(InvalidTransition) as caught:
        machine.handle(v.SinkReplied("never", ok=True))
    assert len(caught.value.story) == STORY_LENGTH
    assert "PHASE: Heard(incarnation=59)" in str(caught.value)
    assert machine.story == caught.value.story


@dataclass(frozen=True, slots=True)
class Heard(Event):
    incarnation: Incarnation


class Only(Enum):
    PHASE = "there is no other"


class Listener(Machine[Only]):
    """A machine with the default check of incarnations."""

    PHASES = Only
    EVENTS = (Heard,)
    TABLE = rows({Only.PHASE: {Heard: "_on_heard"}}, EVENTS)

    def validate(self) -> None:
        """No invariants."""

    def _on_heard(self, event: Heard) -> list[Effect]:
        return [v.Note("heard", str(event.incarnation))]


@pytest.mark.parametrize(("incarnation", "let_in"), [(1, False), (2, True), (3, True)])
def test_events_of_older_incarnations_are_dropped_by_default(incarnation: int, let_in: bool) -> None:
    effects = Listener(Only.PHASE, Incarnation(2)).handle(Heard(Incarnation(incarnation)))

    assert [type(effect) for effect in effects] == [v.Note if let_in else v.Drop]


def test_a_broken_invariant_raises_at_once() -> None:
    class Broken(Listener):
        def validate(self) -> None:
            self._ensure(False, "nothing is ever heard")

    with pytest.raises(InvariantBroken, match="nothing is ever heard"):
        Broken(Only.PHASE, Incarnation(1)).handle(Heard(Incarnation(1)))
