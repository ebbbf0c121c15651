"""P5a, asynchronous barrier snapshots on acyclic graphs: hold every input at the barrier until all inputs have it.

Seed 003, algorithm 1; Carbone et al. 2015, section 4.2.

    STARTING -> RUNNING <-> ALIGNING

No message after a barrier is processed before the capture, so the channels of a cut are empty: a snapshot is state
alone. On a loop the head would wait for its own barrier, so cyclic graphs are refused here (see `cyclic`).

Errata corrected:

- E4: a source has no input. Its only barrier comes on Nil, here the coordinator's `begin`. Read literally, the
  algorithm compares a set of blocked inputs with the inputs. Nil is in neither of them or in one.
- E5: barriers carry ids and one snapshot is open at a time. A barrier of a newer one, and an abort, end the current
  alignment and release the held inputs. Without that a lost barrier would block its siblings for ever.
- Lines 12 and 13 send the barrier before the capture. That is safe only because the step is atomic; here the capture
  comes first.
"""

from __future__ import annotations

from enum import Enum

from checkpoint_protocols.machine import Effect, rows
from checkpoint_protocols.message_machine import APP
from checkpoint_protocols.recovery import Birth, Failure, Needs, Protocol, Record, RecoveryPlan
from checkpoint_protocols.snapshots.coordinator import BEGIN, SnapshotCoordinator, everybody_back, nothing_in_flight
from checkpoint_protocols.snapshots.worker import ALWAYS, BARRIER, DECISIONS, SNAPSHOT_EVENTS, AligningWorker, messages
from checkpoint_protocols.vocabulary import Commanded


class SnapshotPhase(Enum):
    """Phase of a task."""

    STARTING = "before its first event"
    RUNNING = "no input is held"
    ALIGNING = "some inputs are held at the barrier"


P = SnapshotPhase


class SnapshotTask(AligningWorker[SnapshotPhase]):
    """One task."""

    PHASES = SnapshotPhase
    AT_REST = (P.RUNNING,)
    TABLE = rows({P.STARTING: {Commanded: "_on_start"}, P.RUNNING: ALWAYS, P.ALIGNING: ALWAYS}, SNAPSHOT_EVENTS)
    MESSAGES = messages(
        {
            P.RUNNING: {APP: "_deliver", BEGIN: "_on_begin", BARRIER: "_on_barrier", **DECISIONS},
            # A source has no inputs to align, so `begin`, which only sources get, cannot arrive in this phase.
            P.ALIGNING: {APP: "_deliver", BARRIER: "_on_barrier", **DECISIONS},
        }
    )

    def __init__(self, birth: Birth) -> None:
        super().__init__(P.STARTING, birth)

    def _update_phase(self) -> None:
        self.phase = P.ALIGNING if self.held else P.RUNNING

    def _keep(self, number: int, captured: Record) -> list[Effect]:
        return [self._write(number, captured)]


def plan(failure: Failure) -> RecoveryPlan:
    """Return the plan: all processes restore the newest decided snapshot; the channels are empty."""
    return everybody_back(failure, nothing_in_flight)


PROTOCOL = Protocol(
    name="snapshots",
    title="Aligned barriers on an acyclic graph (ABS)",
    source="seed 003, algorithm 1; Carbone et al. 2015, section 4.2; errata E4, E5",
    needs=Needs(fifo=True, acyclic=True),
    worker=SnapshotTask,
    plan=plan,
    coordinator=SnapshotCoordinator,
)
