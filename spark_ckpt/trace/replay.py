"""Replay of a recorded incarnation: the same events must give the same answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from pydantic import JsonValue

from checkpoint_protocols.machine import Event
from spark_ckpt.coordination.protocol import EpochProtocol
from spark_ckpt.coordination.stage_process import StageProcess
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.errors import TraceInvalid
from spark_ckpt.trace.encoding import Object
from spark_ckpt.trace.lines import STAGE_EVENTS, Begun, Handled, asked_for, event_of, handled
from spark_ckpt.trace.reading import Recorded

CoreOf = Callable[[Begun], EpochProtocol]
"""Function that creates the rules for a recorded start."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Point at which a replay differs from the recording.

    - `line`: line number in the file, from 1.
    - `recorded`, `replayed`: the first answers that differ; None if there is none.
    """

    name: str
    line: int
    event: Object
    recorded: JsonValue
    replayed: JsonValue

    def __str__(self) -> str:
        return (
            f"{self.name}, line {self.line}: event {_short(self.event)}\n"
            f"  recorded {_short(self.recorded)}\n  replayed {_short(self.replayed)}"
        )


def replayed(
    recorded: Recorded, core_of: CoreOf = Begun.core, stage_kind: type[StageProcess] = StageProcess
) -> Difference | None:
    """Return the first line at which the rules answer differently; None if there is none. Raises `TraceInvalid`.

    `core_of`, `stage_kind`: the shipped rules of an incarnation and between programs, or those of a test.
    """
    core, begun = core_of(recorded.begun), recorded.begun.stage
    stage = begun.process(stage_kind) if begun is not None else None
    asked: dict[int, Manifest] = {}
    # Line 1 is the incarnation's start.
    for number, line in enumerate(recorded.lines, 2):
        event = event_of(line, asked)
        found = _answered(_host_of(event, core, stage), event, line.now_ms)
        if (found.effects, found.raised) != (line.effects, line.raised):
            then, now = _first(line, found)
            return Difference(recorded.name, number, line.event, then, now)
        asked |= asked_for(line)  # the recorded answers, which the replayed ones equal
    return None


def _host_of(event: Event, core: EpochProtocol, stage: StageProcess | None) -> EpochProtocol | StageProcess:
    if not isinstance(event, STAGE_EVENTS):
        return core
    if stage is None:
        raise TraceInvalid(f"{type(event).__name__} was recorded of an independent program")
    return stage


def _answered(rules: EpochProtocol | StageProcess, event: Event, now_ms: float) -> Handled:
    try:
        effects = rules.handle(event, now_ms)
    except Exception as error:  # noqa: BLE001 - any error is the answer
        return handled(event, now_ms, (), type(error).__name__)
    return _as_read(handled(event, now_ms, effects))


def _as_read(line: Handled) -> Handled:
    # Tuples become lists in JSON, as in the recorded line.
    return Handled.model_validate_json(line.text())


def _first(line: Handled, found: Handled) -> tuple[JsonValue, JsonValue]:
    if line.raised != found.raised:
        return line.raised or list(line.effects), found.raised or list(found.effects)
    pairs = zip_longest(line.effects, found.effects)
    return next((then, now) for then, now in pairs if then != now)


def _short(value: JsonValue, most: int = 600) -> str:
    text = json.dumps(value)
    return text if len(text) <= most else text[:most] + " ..."


def differences(traces: Sequence[Recorded], core_of: CoreOf = Begun.core) -> list[Difference]:
    """Return the first difference of each incarnation that has one."""
    return [found for each in traces if (found := replayed(each, core_of)) is not None]
