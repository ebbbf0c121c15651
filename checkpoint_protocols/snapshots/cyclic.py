"""P5b, barrier snapshots on graphs with loops: align on regular inputs, log the messages inside a loop.

Seed 003, algorithm 2; Carbone et al. 2015, section 4.3.

    STARTING -> RUNNING <-> ALIGNING -> LOGGING -> RUNNING

Without its back edges the graph is acyclic, and is aligned as in `snapshots`. The barrier then travels around the
loops. Some messages arrive on a back edge after the copy and before the barrier: they were sent before the cut and
received after it. They are logged with the copy, and delivered first after a recovery. A back edge is never held, so
there is no deadlock.

Errata corrected:

- E4: Nil. Line 9 marks it, and line 13 compares with the regular inputs, which do not contain it: a source never fires.
- E5: ids. Only `logging` keeps line 13 from firing again. A barrier of the next snapshot that arrives in the meantime
  disappears in the set. Line 12 then blocks its channel for ever.
- E6: line 25 tests `node` for `input`, and line 26 logs the input for the message. A back edge is logged even after its
  own barrier, while another is awaited: those messages would be delivered twice.
- Line 16 unblocks all inputs, line 12 blocks only regular ones. `0` stands for the empty set.
"""

from __future__ import annotations

from enum import Enum

from checkpoint_protocols.ids import ChannelId
from checkpoint_protocols.machine import Effect, Event, rows
from checkpoint_protocols.message_machine import APP
from checkpoint_protocols.recovery import Birth, Failure, Needs, Protocol, Record, RecoveryPlan
from checkpoint_protocols.snapshots.coordinator import BEGIN, SnapshotCoordinator, everybody_back, kept_with_checkpoint
from checkpoint_protocols.snapshots.worker import ALWAYS, BARRIER, DECISIONS, SNAPSHOT_EVENTS, AligningWorker, messages
from checkpoint_protocols.vocabulary import (
    Commanded,
    Envelope,
    Note,
    Received,
)


class CyclicPhase(Enum):
    """Phase of a task."""

    STARTING = "before its first event"
    RUNNING = "no snapshot is under way here"
    ALIGNING = "some regular inputs are held at the barrier"
    LOGGING = "captured; back edges are logged until the barrier has come around"


P = CyclicPhase


class CyclicTask(AligningWorker[CyclicPhase]):
    """One task."""

    PHASES = CyclicPhase
    AT_REST = (P.RUNNING,)
    TABLE = rows(
        {P.STARTING: {Commanded: "_on_start"}, P.RUNNING: ALWAYS, P.ALIGNING: ALWAYS, P.LOGGING: ALWAYS},
        SNAPSHOT_EVENTS,
    )
    MESSAGES = messages(
        {
            P.RUNNING: {APP: "_deliver", BEGIN: "_on_begin", BARRIER: "_on_barrier", **DECISIONS},
            P.ALIGNING: {APP: "_deliver", BARRIER: "_on_barrier", **DECISIONS},
            P.LOGGING: {APP: "_on_logged_message", BARRIER: "_on_barrier_while_logging", **DECISIONS},
        }
    )

    def __init__(self, birth: Birth) -> None:
        super().__init__(P.STARTING, birth)
        self.regular = frozenset(birth.graph.regular_inputs[birth.me])
        # Never held: the barrier on a back edge follows this task's own, so the task would wait for itself.
        self.back = frozenset(self.inputs) - self.regular
        self.awaited: set[ChannelId] = set()
        """Back edges on which the barrier of `index` has not returned."""
        self.log: list[Envelope] = []
        self.captured: Record = {}

    def validate(self) -> None:
        """Check the invariants that hold between two events. Raises `InvariantBroken`."""
        super().validate()
        self._ensure(not (self.held and self.awaited), "one snapshot is under way at a time")
        self._ensure(bool(self.awaited) or not self.log, "nothing is logged but for a snapshot")

    def _stale(self, event: Event) -> str | None:
        match event:
            case Received(message=Envelope(kind=kind, index=number)) if (kind, number) == (BARRIER, self.index):
                # The captured snapshot is over by number, but its barrier still has to return on the back edges.
                return None if self.awaited else f"snapshot {number} is over here"
        return super()._stale(event)

    def _update_phase(self) -> None:
        if self.awaited:
            self.phase = P.LOGGING
        else:
            self.phase = P.ALIGNING if self.held else P.RUNNING

    def _keep(self, number: int, captured: Record) -> list[Effect]:
        # Algorithm 2, lines 13 to 16: the copy is taken at the last regular barrier, and inputs are released. Lines 19 and 20:
        # the record waits for the back edges.
        self.awaited = set(self.back)
        self.captured = captured
        return self._close_log()

    def _close_log(self) -> list[Effect]:
        if self.awaited:
            return []
        log, self.log = self.log, []
        return [self._write(self.index, self.captured, log)]

    # -- back edges ----------------------------------------------------------------------------------------------

    def _on_logged_message(self, event: Received) -> list[Effect]:
        # After the channel's barrier has returned, its messages are after the cut. Seed 003 logs them while another back edge is
        # awaited (E6): they would be delivered from the log, and again when their sender repeats them.
        if event.channel in self.awaited:
            self.log.append(event.message)
        return self._deliver(event)

    def _on_barrier_while_logging(self, event: Received) -> list[Effect]:
        # E5: a newer snapshot's barrier is not counted for this one. It abandons the log here (`_make_way`).
        if event.message.index != self.index:
            return self._on_barrier(event)
        if event.channel not in self.awaited:
            raise self._invalid(event, f"the barrier is awaited on {sorted(self.awaited)}")
        self.awaited.discard(event.channel)
        self._update_phase()
        return self._close_log()

    # -- aborted snapshots ---------------------------------------------------------------------------------------

    def _make_way(self, number: int) -> list[Effect]:
        # A log without its last barrier would be incomplete, so it is dropped as a whole.
        dropped = self._drop_log(f"the barrier of {number} came") if self.awaited else []
        return [*dropped, *super()._make_way(number)]

    def _on_abort(self, event: Received) -> list[Effect]:
        due = self.awaited and self.index <= event.message.index
        dropped = self._drop_log("the coordinator gave it up") if due else []
        return [*dropped, *super()._on_abort(event)]

    def _drop_log(self, why: str) -> list[Effect]:
        self.awaited.clear()
        self.log.clear()
        self._update_phase()
        return [Note("log abandoned", f"{self.index}: {why}")]


def plan(failure: Failure) -> RecoveryPlan:
    """Return the plan: all processes restore the newest decided snapshot; loop heads deliver the logged messages first."""
    return everybody_back(failure, kept_with_checkpoint)


PROTOCOL = Protocol(
    name="cyclic-snapshots",
    title="Aligned barriers with logs on back edges (ABS on cyclic graphs)",
    source="seed 003, algorithm 2; Carbone et al. 2015, section 4.3; errata E4, E5, E6",
    needs=Needs(fifo=True),
    worker=CyclicTask,
    plan=plan,
    coordinator=SnapshotCoordinator,
)
