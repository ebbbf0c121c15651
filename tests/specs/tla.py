"""Values and recorded schedules as TLA+."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One action of a specification, its process, and the state of the machines after it: empty if unknown."""

    action: str
    node: str
    shown: Mapping[str, str]


def record(values: Mapping[str, str]) -> str:
    """Return a record, which is also a function of strings."""
    return "[" + ", ".join(f"{name} |-> {value}" for name, value in values.items()) + "]"


def sequence(values: Iterable[str]) -> str:
    """Return a sequence."""
    return f"<<{', '.join(values)}>>"


def set_of(values: Iterable[str]) -> str:
    """Return a set."""
    return f"{{{', '.join(values)}}}"


def changes(steps: Sequence[Step]) -> list[Step]:
    """Return the steps with changed values only, where the step before has a state, too."""
    before: Mapping[str, str] = {}
    found = []
    for step in steps:
        changed = {name: value for name, value in step.shown.items() if before.get(name) != value}
        found.append(Step(step.action, step.node, changed or dict(list(step.shown.items())[:1])))
        before = step.shown
    return found


def traces_module(
    name: str, traces: Sequence[Sequence[Step]], named: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The file of a module that defines `Traces`: sequences of steps, in which names stand for values."""
    body = ",\n".join("<<" + ",\n  ".join(map(_step, trace)) + ">>" for trace in traces)
    names = "".join(f"{each} == {value}\n" for each, value in (named or {}).items())
    return {f"{name}.tla": f"---- MODULE {name} ----\nEXTENDS Integers\n{names}Traces == <<\n{body}\n>>\n====\n"}


def _step(step: Step) -> str:
    seen = record(step.shown) if step.shown else "[none |-> 0]"
    shows = str(bool(step.shown)).upper()
    return record({"act": f'"{step.action}"', "n": f'"{step.node}"', "seen": seen, "shows": shows})
