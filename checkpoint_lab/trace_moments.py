"""A recorded trace as moments, for the stories and diagrams of simulated runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pydantic import JsonValue

from checkpoint_lab.world import Moment
from spark_ckpt.trace.reading import Recorded
from spark_ckpt.wording import counted

DRIVER, LOG = "driver", "log"
_BARRIER = 2
"""`coordination.markers.BARRIER`, the kind of a marker that ends an epoch."""

Said = tuple[str, str, str]
"""Process, kind, label."""


def moments_of(traces: Sequence[Recorded]) -> list[Moment]:
    """Return the moments of recorded incarnations, a step per line.

    An incarnation without an end was killed or replaced, unless its trace is cut.
    """
    found: list[Moment] = []
    step = 0
    for recorded in traces:
        said = [_begun(recorded), *(list(_handled(line.event, line.effects)) for line in recorded.lines)]
        if not recorded.cut and not _has_ended(recorded):
            said.append([(DRIVER, "crash", f"incarnation {recorded.incarnation}")])
        for each in said:
            step += 1
            found += [Moment(step, *what) for what in each]
    return found


def _begun(recorded: Recorded) -> list[Said]:
    point = recorded.begun.point
    return [(DRIVER, "recover", f"incarnation {point.incarnation} from epoch {point.manifest.epoch}")]


def _has_ended(recorded: Recorded) -> bool:
    return any(effect.get("kind") == "End" for line in recorded.lines for effect in line.effects)


def _handled(event: Mapping[str, JsonValue], effects: Sequence[Mapping[str, JsonValue]]) -> Iterator[Said]:
    yield from _of_event(event)
    for effect in effects:
        yield from _asked(effect)


def _of_event(event: Mapping[str, JsonValue]) -> Iterator[Said]:
    match event:
        case {"kind": "BatchDone", "batch": batch}:
            yield DRIVER, "read", f"batch {batch}"
        case {"kind": "ManifestStored", "manifest": {"epoch": epoch}}:
            yield LOG, "complete", f"epoch {epoch}"
        case {"kind": "ManifestFenced", "epoch": epoch}:
            yield LOG, "failed", f"epoch {epoch}: a newer incarnation"
        case {"kind": "ManifestOverdue", "epoch": epoch}:
            yield LOG, "failed", f"epoch {epoch}: no answer"
        case {
            "kind": "PublishEnded",
            "sink": str(sink),
            "epoch": epoch,
            "error": None,
            "rows": int(rows),
            "replayed": before,
        }:
            yield sink, "publish", f"epoch {epoch}, {counted(rows, 'row')}" + (", has them" if before else "")
        case {"kind": "PublishEnded", "sink": str(sink), "epoch": epoch, "error": {"condition": condition}}:
            yield sink, "failed", f"epoch {epoch}: {condition}"
        case {"kind": "TimerRanOut", "elapsed": {"kind": kind}}:
            yield DRIVER, "timer", str(kind)
        case {"kind": "StopAsked"}:
            yield DRIVER, "stop", "asked for"
        case {"kind": "SavepointAsked", "name": name}:
            yield DRIVER, "savepoint", str(name)


def _asked(effect: Mapping[str, JsonValue]) -> Iterator[Said]:
    match effect:
        case {"kind": "OfferMarker", "marker": {"kind": kind, "epoch": epoch}} if kind == _BARRIER:
            yield DRIVER, "inject", f"epoch {epoch}"
        case {"kind": "StoreManifest", "manifest": {"epoch": epoch, "reason": reason}}:
            yield DRIVER, "decide", f"epoch {epoch}, {reason}"
        case {"kind": "SayAborted", "epoch": epoch, "why": why}:
            yield DRIVER, "aborted", f"epoch {epoch}: {why}"
        case {"kind": "End", "outcome": outcome}:
            yield DRIVER, "ended", str(outcome)
