"""Turn the records of a system's program (`benchmarks.systems.telling`) into passages of its records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from benchmarks.side_by_side.accounting import EVER, NEVER, VISIBLE, WAIT, Ends, Passage, Span, in_turn

ProgramRecord = Mapping[str, Any]
BEFORE_THE_ACTION = (
    ("latestOffset", "offsets"),
    ("walCommit", "log"),
    ("getBatch", "planning"),
    ("queryPlanning", "planning"),
)
"""Spark's phases in their order, and their parts."""
OF_THE_ACTION = ("fetch", "operator", "snapshot", "staging")
OF_A_PUBLISH = ("early", "init", "verify", "send", "commit")


@dataclass(frozen=True)
class Batch:
    """One of Spark's micro-batches. `ended`: end of its action, from Spark's phases and ours."""

    ends: Ends
    spans: tuple[Span, ...]
    ended: float


@dataclass(frozen=True)
class Epoch:
    """One committed epoch, and the spans from its commit to its output."""

    ends: Ends
    spans: tuple[Span, ...]


def passages(lines: Iterable[str]) -> list[Passage]:
    """Passages of all batches: each batch's own spans, and for a system with epochs those of the batch's epoch."""
    records = [json.loads(line) for line in lines]
    batches = [batch_of(each["progress"]) for each in records if each["what"] == "batch"]
    epochs = list(_epochs(records))
    if not any(each["what"] == "decided" for each in records):
        return [Passage(each.ends, in_turn([*each.spans, Span(VISIBLE, each.ended, NEVER)])) for each in batches]
    return [Passage(each.ends, in_turn(_with_epoch(each, batches, epochs))) for each in batches]


def _with_epoch(batch: Batch, batches: list[Batch], epochs: list[Epoch]) -> Iterator[Span]:
    """After the batch its records wait for the last batch of its epoch."""
    yield from batch.spans
    epoch = next((each for each in epochs if _covers(each.ends, batch.ends)), None)
    if epoch is None:
        return
    last = next((each for each in batches if _covers(each.ends, epoch.ends)), batch)
    yield Span("barrier", batch.ended, last.ended)
    yield from epoch.spans


def _covers(ends: Ends, others: Ends) -> bool:
    return all(ends.get(partition, 0) >= offset for partition, offset in others.items())


# -- a batch -----------------------------------------------------------------------------------------------------------


def batch_of(progress: ProgramRecord) -> Batch:
    """Read a progress record, Spark's or ours with Spark's phases.

    Spark reports the start of a trigger and the durations of its phases, which follow each other. Time without a phase lies before
    the action, as do the preparations of a batch.
    """
    took_s = {name: ms / 1000 for name, ms in progress["durationMs"].items()}
    began = _moment(progress.get("triggerTimestamp") or progress["timestamp"])
    spans = [Span(WAIT, EVER, began)]
    for phase, part in BEFORE_THE_ACTION:
        at = max(began, spans[-1].end)
        spans.append(Span(part, at, at + took_s.get(phase, 0.0)))
    ended = began + took_s["triggerExecution"] - took_s.get("commitOffsets", 0.0)
    start = max(spans[-1].end, ended - took_s["addBatch"])
    actions = list(_action(start, took_s))
    return Batch(_ends(progress), (*spans, *actions), actions[-1].end)


def _action(start: float, took_s: Mapping[str, float]) -> Iterator[Span]:
    """Our parts of the action; Spark alone has one phase for it."""
    if "fetch" not in took_s:
        yield Span("action", start, start + took_s.get("batch", took_s["addBatch"]))
        return
    for part in OF_THE_ACTION:
        yield Span(part, start, start + took_s[part])
        start += took_s[part]


def _ends(progress: ProgramRecord) -> Ends:
    """End offsets of the one Kafka topic that a job reads."""
    sources = progress["sources"]
    if isinstance(sources, list):
        offsets = sources[0]["endOffset"]
        (partitions,) = (json.loads(offsets) if isinstance(offsets, str) else offsets).values()
    else:
        (cursor,) = sources.values()
        (partitions,) = cursor.values()
    return {int(partition): int(offset) for partition, offset in partitions.items()}


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


# -- an epoch ----------------------------------------------------------------------------------------------------------


def _epochs(records: Iterable[ProgramRecord]) -> Iterator[Epoch]:
    """Committed epochs with their publishes; an unpublished epoch ends with its commit."""
    records = list(records)
    published = {each["epoch"]: each for each in records if each["what"] == "published"}
    for each in records:
        if each["what"] == "decided" and each["ends"]:
            spans = [_decision(each), *_publish(published.get(each["epoch"]))]
            yield Epoch(_ends({"sources": each["ends"]}), tuple(spans))


def _decision(decided: ProgramRecord) -> Span:
    start = decided["began_ms"] / 1000
    return Span("decision", start, start + decided["decision_ms"] / 1000)


def _publish(published: ProgramRecord | None) -> Iterator[Span]:
    """Parts that the sink reports lie at its end, in their order; before them the epoch waited for the sink."""
    if published is None:
        return
    end, took_s = published["at"], published["duration_ms"] / 1000
    parts_ms = published.get("parts_ms", {})
    parts_s = {part: parts_ms[part] / 1000 for part in OF_A_PUBLISH if part in parts_ms}
    start = max(end - took_s, end - sum(parts_s.values()))
    yield Span("publish", end - took_s, start)
    for part, each_s in parts_s.items():
        yield Span(f"publish_{part}", start, start + each_s)
        start += each_s
    yield Span(VISIBLE, end, NEVER)
