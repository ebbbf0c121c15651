"""The folder's rules: total tables, one mutating method, nothing impure, errors that tell a story."""

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
from checkpoint_protocols import barrier as b
from checkpoint_protocols.ids import Epoch, Incarnation, SinkId, TaskId
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
    render_table,
    rows,
)

FOLDER = Path(machine_module.__file__).parent
ALLOWED = {"__future__", "abc", "collections", "dataclasses", "enum", "functools", "itertools", "typing"}

each_role = pytest.mark.parametrize("role", b.ROLES, ids=lambda role: role.__name__)


@each_role
def test_the_table_decides_every_phase_and_event(role: type[Machine[Any]]) -> None:
    assert missing_cells(role) == []
    assert set(role.TABLE) == {(phase, event) for phase in role.PHASES for event in role.EVENTS}


@each_role
def test_every_cell_is_a_verdict_or_a_method_of_the_machine(role: type[Machine[Any]]) -> None:
    names = {cell for cell in role.TABLE.values() if isinstance(cell, str)}

    assert all(callable(getattr(role, name)) for name in names)
    assert {cell for cell in role.TABLE.values() if not isinstance(cell, str)} <= {IGNORE_STALE, INVALID}


@each_role
def test_every_handler_is_in_the_table(role: type[Machine[Any]]) -> None:
    named = {cell for cell in role.TABLE.values() if isinstance(cell, str)}
    source = inspect.getsource(sys.modules[role.__module__])
    called = {name for name in vars(role) if name.startswith("_on_") and source.count(f"self.{name}(") > 0}

    assert {name for name in vars(role) if name.startswith("_on_")} <= named | called


def test_a_missing_cell_is_found() -> None:
    class Holey(b.Operator):
        TABLE = dict(list(b.Operator.TABLE.items())[1:])  # noqa: RUF012 - a table like any other

    assert missing_cells(Holey) == [(b.OperatorPhase.RUNNING, b.BarrierArrived)]
    with pytest.raises(InvalidTransition):
        Holey(TaskId("t"), (), Incarnation(1), Epoch(0)).handle(b.BarrierArrived(b.NIL, Epoch(1), Incarnation(1)))


def test_the_folder_imports_nothing_that_acts() -> None:
    wrong = {str(path.relative_to(FOLDER)): found for path in FOLDER.rglob("*.py") if (found := foreign_to(path))}
    assert wrong == {}


def foreign_to(path: Path) -> set[str]:
    """Imported modules that are neither the folder's own nor among those that do nothing."""
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
    machine = b.Coordinator(
        b.Topology(frozenset({TaskId("t")}), frozenset({SinkId("k")})), Incarnation(1), Epoch(0), b.Limits()
    )
    machine.handle(b.Started())
    before = copy.deepcopy({name: value for name, value in vars(machine).items() if name != "_story"})
    _ = machine.story, machine.open_epoch, machine.last_decided, machine.unpublished
    machine.validate()

    assert {name: value for name, value in vars(machine).items() if name != "_story"} == before


def test_an_error_tells_the_recent_story_and_no_more() -> None:
    machine = b.Operator(TaskId("t"), (), Incarnation(1), Epoch(0))
    for epoch in range(1, 60):
        machine.handle(b.BarrierArrived(b.NIL, Epoch(epoch), Incarnation(1)))

    with pytest.raises(InvalidTransition) as caught:
        machine.handle(b.Restored(Epoch(1), Incarnation(1)))
    assert len(caught.value.story) == STORY_LENGTH
    assert "RUNNING: BarrierArrived(channel='', epoch=59" in str(caught.value)
    assert machine.story == caught.value.story


@dataclass(frozen=True, slots=True)
class Heard(Event):
    incarnation: Incarnation


class Only(Enum):
    PHASE = "there is no other"


class Listener(Machine[Only]):
    """A machine that keeps the defaults at the door."""

    PHASES = Only
    EVENTS = (Heard,)
    TABLE = rows({Only.PHASE: {Heard: "_on_heard"}}, EVENTS)

    def validate(self) -> None:
        """Nothing can be wrong."""

    def _on_heard(self, event: Heard) -> list[Effect]:
        return [b.Note("heard", str(event.incarnation))]


@pytest.mark.parametrize(("incarnation", "let_in"), [(1, False), (2, True), (3, True)])
def test_the_door_turns_older_lives_away_and_newer_ones_only_where_a_machine_says_so(
    incarnation: int, let_in: bool
) -> None:
    effects = Listener(Only.PHASE, Incarnation(2)).handle(Heard(Incarnation(incarnation)))

    assert [type(effect) for effect in effects] == [b.Note if let_in else b.Drop]


def test_a_broken_invariant_raises_at_once() -> None:
    machine = b.Operator(TaskId("t"), (), Incarnation(1), Epoch(0))
    machine._held.add(b.NIL)

    with pytest.raises(InvariantBroken, match="inputs are held iff aligning"):
        machine.handle(b.EpochAborted(Epoch(1), Incarnation(1)))


@each_role
def test_the_rendered_table_has_a_row_per_event_and_a_column_per_phase(role: type[Machine[Any]]) -> None:
    lines = render_table(role).splitlines()

    assert [line.split(" | ")[0].strip("| ") for line in lines[2:]] == [event.__name__ for event in role.EVENTS]
    assert {line.count("|") for line in lines} == {len(role.PHASES) + 2}


def test_the_rendered_table_says_what_happens() -> None:
    assert "| BarrierArrived | barrier | another barrier | - |" in render_table(b.Operator)
    assert "| SnapshotStored | snapshot stored | snapshot stored | ignored |" in render_table(b.Operator)
