"""From `kill -9` of all processes and an immediate restart to the first new committed record, and the faults of the output. With
a standby nothing is restarted: the standby takes over."""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from benchmarks.side_by_side.topics import Topics, reader
from benchmarks.side_by_side.trial import FIRST_RECORD_TIMEOUT_S, Failed, Subject, Trial, faults, some_moment, trial

_COMMITS = 3
_LONGEST_WAIT_S = 120.0
_SETTLE_S = 0.3
"""After the kill, records in transit still arrive: for less time than any system needs to start."""
_LEAST_AFTER_S = 8.0


def measure(subject: Subject, topics: Topics, folder: Path, repeat: int) -> dict[str, float]:
    """Return the values of the result line."""
    with trial(subject, topics, folder) as one:
        started = one.start()
        began = one.wait_for_first_record()
        one.start_standby()
        _run_to_the_kill(one, began, repeat)
        killed = time.monotonic()
        one.processes.kill()
        one.continue_after_kill()
        _run_after_the_kill(one, topics)
        one.kill()
        verdict, progress = one.verdict()
        timeline = one.watch.timeline(progress)
    first = timeline.first_above(0)
    again = timeline.first_above(timeline.total_at(killed + _SETTLE_S))
    if first is None or again is None:
        raise Failed("nothing new was committed after the restart")
    return {"first_record_s": again - killed, "start_s": first - started, **faults(verdict)}


def _run_to_the_kill(one: Trial, first: float, repeat: int) -> None:
    """Run for some commits and intervals, so that there is something to recover, and kill at a moment that no system chooses."""
    interval_s = one.subject.interval_ms / 1000
    reason = f"fewer than {_COMMITS} commits in {_LONGEST_WAIT_S:.0f} s"
    one.wait(lambda: len(one.watch.changes(first - 1)) >= _COMMITS, _LONGEST_WAIT_S, reason)
    one.rest(first + (_COMMITS - 1) * interval_s - time.monotonic())
    one.rest(some_moment(one.subject.interval_ms, repeat))
    if one.all_answered:
        raise Failed("all inputs were answered before the kill: the topic is too short")


def _run_after_the_kill(one: Trial, topics: Topics) -> None:
    """Offsets also move when a dead process's transaction is aborted; only a reader can distinguish that from records."""
    time.sleep(_SETTLE_S)
    consumer = _at_the_end(topics, one.target)
    try:
        come = f"{one.watch.total:,} of {len(one.subject.inputs):,} inputs"
        reason = f"no committed record within {FIRST_RECORD_TIMEOUT_S:.0f} s of the restart, after {come}"
        one.wait(lambda: _has_record(consumer), FIRST_RECORD_TIMEOUT_S, reason)
    finally:
        consumer.close()
    one.rest(max(_LEAST_AFTER_S, 2 * one.subject.interval_ms / 1000))


def _at_the_end(topics: Topics, target: str) -> Consumer:
    consumer = reader(topics.servers, {})
    consumer.assign([TopicPartition(target, partition, end) for partition, end in enumerate(topics.ends(target))])
    return consumer


def _has_record(consumer: Consumer) -> bool:
    message = consumer.poll(0)
    return message is not None and message.error() is None
