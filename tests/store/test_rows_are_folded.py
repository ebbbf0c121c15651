"""Rows of the log that are read together say what they say one by one, wherever the reading is cut."""

from __future__ import annotations

from spark_ckpt.epochs.log_state import At, LogState, folded
from spark_ckpt.epochs.records import (
    CreatedRecord,
    EpochBrief,
    Heartbeat,
    IncarnationRecord,
    Published,
    SavepointRecord,
    SinkAck,
)
from tests.store.store_world import ELSEWHERE


def began(incarnation: int, base: int) -> IncarnationRecord:
    return IncarnationRecord(
        incarnation=incarnation, holder=ELSEWHERE, base=base, restored_from="latest", lease_ms=30, lease_expires_ms=30
    )


def decided(epoch: int, incarnation: int, acked: int = 0, expires_ms: int = 0) -> EpochBrief:
    acks = (SinkAck(sink="out", epoch=acked),) if acked else ()
    return EpochBrief(
        epoch=epoch, incarnation=incarnation, attempt=f"a{epoch}", base=epoch - 1, previous=epoch - 1, created_ms=epoch,
        sinks=("out",), acks=acks, lease_expires_ms=expires_ms,
        duration_ms=1, reason="interval", rows_in=0, rows_out=0,
    )  # fmt: skip


ROWS = [
    CreatedRecord(job="job", store_id="s"),
    began(1, 0),
    decided(1, 1, expires_ms=10),
    decided(2, 1, acked=1, expires_ms=20),
    decided(3, 1, expires_ms=30),
    Heartbeat(incarnation=1, lease_expires_ms=40),
    decided(4, 1, acked=3, expires_ms=50),
    began(2, 3),
    decided(5, 2, expires_ms=60),
    SavepointRecord(name="here", epoch=5),
    decided(6, 2, acked=5, expires_ms=70),
    decided(7, 2, expires_ms=80),
    Published(incarnation=2, acks=(SinkAck(sink="out", epoch=7),)),
]
RECORDS = [(At(seq, 1000 + seq), record) for seq, record in enumerate(ROWS, start=1)]


def one_by_one() -> LogState:
    log_state = LogState()
    for record in RECORDS:
        log_state = folded(log_state, [record])
    return log_state


def test_wherever_the_reading_is_cut_the_tail_is_the_same() -> None:
    expected = one_by_one()
    for cut in range(len(RECORDS) + 1):
        assert folded(folded(LogState(), RECORDS[:cut]), RECORDS[cut:]) == expected, cut


def test_what_the_epochs_say_is_there() -> None:
    log_state = folded(LogState(), RECORDS)
    assert (log_state.latest, log_state.last, dict(log_state.acked), sorted(log_state.by_id)) == (
        7,
        7,
        {"out": 7},
        [1, 2, 3, 4, 5, 6, 7],
    )
    assert (log_state.lease_expires_ms, log_state.lease_token, log_state.renewed_ms) == (1043, 13, 1013)


def test_epochs_of_two_incarnations_are_not_taken_together() -> None:
    """A late row of an older incarnation renews nothing, and the next one's does."""
    rows = [
        RECORDS[0],
        RECORDS[1],
        (At(3, 3), began(2, 0)),
        (At(4, 4), decided(1, 2, expires_ms=9)),
        (At(5, 5), decided(2, 1)),
    ]
    log_state = folded(LogState(), rows)
    assert (log_state.lease_expires_ms, log_state.lease_token) == (9, 4)
