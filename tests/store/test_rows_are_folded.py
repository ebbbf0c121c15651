"""Folded rows of the log have the same meaning as single ones, for any cut of the reading."""

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


def committed(epoch: int, incarnation: int, acked: int = 0, expires_ms: int = 0) -> EpochBrief:
    acks = (SinkAck(sink="out", epoch=acked),) if acked else ()
    return EpochBrief(
        epoch=epoch, incarnation=incarnation, attempt=f"a{epoch}", base=epoch - 1, previous=epoch - 1, created_ms=epoch,
        sinks=("out",), acks=acks, lease_expires_ms=expires_ms,
        duration_ms=1, reason="interval", rows_in=0, rows_out=0,
    )  # fmt: skip


ROWS = [
    CreatedRecord(job="job", store_id="s"),
    began(1, 0),
    committed(1, 1, expires_ms=10),
    committed(2, 1, acked=1, expires_ms=20),
    committed(3, 1, expires_ms=30),
    Heartbeat(incarnation=1, lease_expires_ms=40),
    committed(4, 1, acked=3, expires_ms=50),
    began(2, 3),
    committed(5, 2, expires_ms=60),
    SavepointRecord(name="here", epoch=5),
    committed(6, 2, acked=5, expires_ms=70),
    committed(7, 2, expires_ms=80),
    Published(incarnation=2, acks=(SinkAck(sink="out", epoch=7),)),
]
RECORDS = [(At(seq, 1000 + seq), record) for seq, record in enumerate(ROWS, start=1)]


def one_by_one() -> LogState:
    log_state = LogState()
    for record in RECORDS:
        log_state = folded(log_state, [record])
    return log_state


def test_the_result_is_the_same_for_any_cut_of_the_reading() -> None:
    expected = one_by_one()
    for cut in range(len(RECORDS) + 1):
        assert folded(folded(LogState(), RECORDS[:cut]), RECORDS[cut:]) == expected, cut


def test_the_state_has_the_records_of_its_epochs() -> None:
    log_state = folded(LogState(), RECORDS)
    assert (log_state.latest, log_state.last, dict(log_state.acked), sorted(log_state.by_id)) == (
        7,
        7,
        {"out": 7},
        [1, 2, 3, 4, 5, 6, 7],
    )
    assert (log_state.lease_expires_ms, log_state.lease_token, log_state.renewed_ms) == (1043, 13, 1013)


def test_epochs_of_two_incarnations_are_not_merged() -> None:
    """A late row of an older incarnation renews nothing; a row of the next one does."""
    rows = [
        RECORDS[0],
        RECORDS[1],
        (At(3, 3), began(2, 0)),
        (At(4, 4), committed(1, 2, expires_ms=9)),
        (At(5, 5), committed(2, 1)),
    ]
    log_state = folded(LogState(), rows)
    assert (log_state.lease_expires_ms, log_state.lease_token) == (9, 4)
