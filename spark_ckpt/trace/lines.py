"""The lines of a trace, typed and checked: an incarnation's start, then each event with the answers of the rules.

The fields of an event are those of its class in `coordination/messages.py`. So a new field is recorded without a change
here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Annotated, Literal, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    create_model,
)

from checkpoint_protocols.machine import Event
from spark_ckpt.coordination import messages
from spark_ckpt.coordination.job_shape import JobShape
from spark_ckpt.coordination.manifests import stamped
from spark_ckpt.coordination.protocol import EpochProtocol
from spark_ckpt.coordination.reports import Report, Step
from spark_ckpt.coordination.stage_process import Between, EpochEnding, EpochServes, LogsRead, StageProcess
from spark_ckpt.epochs.identity import Standing
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.epochs.restore import RecoveryPoint
from spark_ckpt.errors import CkptError, TraceInvalid
from spark_ckpt.trace.encoding import digest_of, encoded, kinds_of_errors


class _TraceLine(BaseModel):
    # Fields of another version are refused, not left out.
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


def _with_root(shape: object) -> object:
    """Complete a recorded shape: roots are not recorded."""
    if not isinstance(shape, dict) or not isinstance(shape.get("sinks"), dict):
        return shape
    return shape | {"sinks": {name: {"root": "", **place} for name, place in shape["sinks"].items()}}


FORMAT = 4
"""Format of the lines. It grows when their names change: a reader refuses other formats."""


def _this_format(format_: object) -> object:
    if format_ != FORMAT:
        raise ValueError(
            f"the trace has format {format_}, this version reads format {FORMAT}: replay it with the version that wrote it"
        )
    return format_


class StageBegun(_TraceLine):
    """Values that the rules between programs were created with, as in `StageProcess`."""

    protocol: Between
    every_ms: int
    epoch: int
    index: int
    reads: bool
    served: tuple[tuple[int, int], ...]
    heard: int

    @classmethod
    def of(cls, stage: StageProcess) -> StageBegun | None:
        """Return the values of rules that have handled nothing yet; None for an independent program."""
        if not stage.protocol.indexed:
            return None
        return cls(
            protocol=stage.protocol,
            every_ms=stage.every_ms,
            epoch=stage.epoch,
            index=stage.index,
            reads=stage.waits_for_inputs,
            served=tuple(stage.served.items()),
            heard=stage.newest_heard,
        )

    def process(self, kind: type[StageProcess] = StageProcess) -> StageProcess:
        """Create the rules from these values."""
        return kind(self.protocol, self.every_ms, self.epoch, self.index, self.reads, self.served, self.heard)


class Begun(_TraceLine):
    """First line: the values that the rules of an incarnation were created with.

    `stage`: those of the rules between programs; None for an independent program.
    """

    line: Literal["begun"] = "begun"
    format: Annotated[int, BeforeValidator(_this_format)] = FORMAT
    shape: Annotated[JobShape, BeforeValidator(_with_root)]
    point: RecoveryPoint
    standing: Standing
    acked: dict[str, int]
    stage: StageBegun | None = None

    @classmethod
    def of(
        cls,
        shape: JobShape,
        point: RecoveryPoint,
        standing: Standing,
        acked: Mapping[str, int],
        stage: StageProcess | None = None,
    ) -> Begun:
        """Create a line from values that are valid already."""
        return cls.model_construct(
            line="begun",
            format=FORMAT,
            shape=shape,
            point=point,
            standing=standing,
            acked=dict(acked),
            stage=StageBegun.of(stage) if stage is not None else None,
        )

    def core(self) -> EpochProtocol:
        """Create the shipped rules from this line."""
        return EpochProtocol(self.shape, self.point, self.standing, self.acked)

    def text(self) -> str:
        """Return the line as it is written."""
        return _dumped({name: encoded(getattr(self, name)) for name in type(self).model_fields})


class Handled(_TraceLine):
    """One event with its time (ms of a monotonic clock) and the answers, or the kind of error instead of answers.

    The time of events between programs is the wall clock, ms since 1970 UTC.
    """

    line: Literal["handled"] = "handled"
    now_ms: float
    event: dict[str, JsonValue]
    effects: list[dict[str, JsonValue]] = []
    raised: str = ""

    def text(self) -> str:
        """Return the line as it is written."""
        return _dumped(self.model_dump(mode="json"))


class TraceCut(_TraceLine):
    """Last line of a trace that has reached its size limit: the incarnation continues unrecorded."""

    line: Literal["cut"] = "cut"

    def text(self) -> str:
        """Return the line as it is written."""
        return _dumped(self.model_dump(mode="json"))


Line = Begun | Handled | TraceCut

_LINE: TypeAdapter[Line] = TypeAdapter(Annotated[Line, Field(discriminator="line")])
_JSON: TypeAdapter[JsonValue] = TypeAdapter(JsonValue)


def _dumped(value: JsonValue) -> str:
    return _JSON.dump_json(value).decode()


def line_of(text: str | bytes) -> Line:
    """Parse a line. Raises `TraceInvalid`."""
    try:
        return _LINE.validate_json(text)
    except ValidationError as error:
        raise TraceInvalid(_complaint(error)) from None


def handled(event: Event, now_ms: float, effects: object, raised: str = "") -> Handled:
    """Return the line for an event and the answers of the rules."""
    return Handled.model_construct(
        line="handled", now_ms=now_ms, event=encoded(event), effects=encoded(effects), raised=raised
    )


# Events, read back from lines.

STAGE_EVENTS: tuple[type[Event], ...] = (LogsRead, EpochEnding, EpochServes)
"""Events of the rules between programs. Their time is the host's wall clock."""

EVENTS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (*vars(messages).values(), *STAGE_EVENTS)
    if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
}


class Reference(_TraceLine):
    """A reference to a manifest that an earlier line has in full."""

    epoch: int
    attempt: str
    created_ms: int
    digest: str

    def of(self, asked: Mapping[int, Manifest]) -> Manifest:
        """Return the manifest as it was stored.

        `asked`: manifests requested to be stored, by epoch. Raises `TraceInvalid`.
        """
        manifest = asked.get(self.epoch)
        if manifest is None or digest_of(manifest) != self.digest:
            raise TraceInvalid(f"epoch {self.epoch} was stored as no line before says that it should be")
        return stamped(manifest, self.attempt, self.created_ms)


class _Report(_TraceLine):
    step: Step
    partition: int
    attempt: int
    scope: str
    body: dict[str, JsonValue]


class _Error(_TraceLine):
    """An encoded error. `expects`: it names a file."""

    condition: str
    expects: bool


_SOME_FILE = "a file"  # the rules ask only if an error names one


def _report(value: object) -> Report:
    read = _Report.model_validate(value)
    # A staged file has a lane; the fields that are not recorded get empty values.
    body = read.body | ({"partition_values": {}, "stats": "{}"} if "lane" in read.body else {})
    return Report(read.step, read.partition, read.attempt, read.scope, body)


def _error(value: object) -> CkptError | None:
    if value is None:
        return None
    read = _Error.model_validate(value)
    kind = kinds_of_errors().get(read.condition)
    if kind is None:
        raise ValueError(f"there is no error {read.condition}")
    return kind("", file=_SOME_FILE if read.expects else None)


_NAMES: Mapping[str, object] = {
    "Json": JsonValue,
    "Cursor": dict[str, JsonValue],
    "Parts": dict[str, str],
    "Report": Annotated[object, PlainValidator(_report)],
    "CkptError": Annotated[object, PlainValidator(_error)],
}
"""Types that stand for the names in the classes of events when a line is read."""

_NOT_RECORDED = {("CommitFenced", "why"): ""}


@cache
def _model_of(name: str) -> type[BaseModel]:
    """Return a pydantic model with the fields of an event's class."""
    kind = EVENTS[name]
    # The local names win over those of the module.
    hints = get_type_hints(kind, vars(sys.modules[kind.__module__]), dict(_NAMES), include_extras=True)
    described: dict[str, tuple[object, object]] = {}
    for each in fields(kind):
        made = each.default if each.default_factory is MISSING else each.default_factory()
        default = _NOT_RECORDED.get((name, each.name), made)
        # `...` is pydantic's mark of a field that the line must have.
        described[each.name] = (hints[each.name], ... if default is MISSING else default)
    return create_model(name, __base__=_TraceLine, **described)  # type: ignore[call-overload, no-any-return]


def _made(value: Mapping[str, object]) -> Event:
    name = str(value.get("kind"))
    if name not in EVENTS:
        raise ValueError(f"there is no event {name}")
    read = _model_of(name).model_validate({field: each for field, each in value.items() if field != "kind"})
    return EVENTS[name](**{each.name: getattr(read, each.name) for each in fields(EVENTS[name])})


def event_of(line: Handled, asked: Mapping[int, Manifest]) -> Event:
    """Return the event of a line.

    `asked`: manifests that earlier lines requested to store, by epoch. Raises `TraceInvalid`.
    """
    try:
        value: dict[str, object] = dict(line.event)
        if value.get("kind") == messages.EpochCommitted.__name__:
            value["manifest"] = Reference.model_validate(value.get("manifest")).of(asked)
        return _made(value)
    except ValidationError as error:
        raise TraceInvalid(_complaint(error)) from None
    except ValueError as error:
        raise TraceInvalid(str(error)) from None


def asked_for(line: Handled) -> dict[int, Manifest]:
    """Return the manifests that a line requests to store, by epoch. Raises `TraceInvalid`."""
    try:
        wanted = [each["manifest"] for each in line.effects if each["kind"] == messages.CommitEpoch.__name__]
        return {each.epoch: each for each in map(Manifest.model_validate, wanted)}
    except (ValidationError, KeyError) as error:
        raise TraceInvalid(_complaint(error) if isinstance(error, ValidationError) else f"no field {error}") from None


def _complaint(error: ValidationError) -> str:
    first = error.errors(include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
