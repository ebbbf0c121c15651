"""Values and recorded schedules as TLA+."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One action of a specification, whose it is, and what the machines show after it: nothing if nothing is known."""

    action: str
    node: str
    shown: Mapping[str, str]


def record(values: Mapping[str, str]) -> str:
    """A record, which is a function of strings too."""
    return "[" + ", ".join(f"{name} |-> {value}" for name, value in values.items()) + "]"


def sequence(values: Iterable[str]) -> str:
    """A sequence."""
    return f"<<{', '.join(values)}>>"


def set_of(values: Iterable[str]) -> str:
    """A set."""
    return f"{{{', '.join(values)}}}"


def traces_module(name: str, traces: Sequence[Sequence[Step]]) -> dict[str, str]:
    """The file of a module that defines `Traces`: sequences of steps."""
    body = ",\n".join("<<" + ",\n  ".join(map(_step, trace)) + ">>" for trace in traces)
    return {f"{name}.tla": f"---- MODULE {name} ----\nEXTENDS Integers\nTraces == <<\n{body}\n>>\n====\n"}


def _step(step: Step) -> str:
    seen = record(step.shown) if step.shown else "[none |-> 0]"
    shows = str(bool(step.shown)).upper()
    return record({"act": f'"{step.action}"', "n": f'"{step.node}"', "seen": seen, "shows": shows})
