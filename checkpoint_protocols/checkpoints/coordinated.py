"""Coordinated checkpoints by message sequence numbers (P6d): all processes that a checkpoint depends on take one, or none does.

Seed 004, "Recording Message Sequence Numbers"; Koo and Toueg 1987. Erratum E15: the seed has neither the two phases nor
the rule that a participant sends nothing between them. Without either, the resulting checkpoints have orphans.

    initiate       tentative checkpoint; no more sends; REQUEST(last received) to every process received from since the
                   permanent one
    REQUEST(L)     nothing up to L was sent since the permanent one: yes.  In another instance: no.
                   Else do as the initiator does, and vote after all own requests are answered
    all yes        the initiator stores the decision and sends it to all; tentative becomes permanent, sends resume
    a no, timeout  the initiator aborts the instance; each process forwards the abort to those that it sent a request
    failure        restore the permanent one; a process that received an undone message restores its own too, and so on

Instances are named `initiator/incarnation/index`. Points that the seed leaves open:

- The decision is one record of the initiator (G2). It names all participants, which the votes collect. It stays until
  every participant has its checkpoint durable as permanent. Until then a tentative checkpoint of a decided instance
  counts as permanent in any recovery. A process that an instance left tentative asks the initiator: no record, no
  checkpoint.
- Control messages overtake each other. A vote that arrives after the abort of its instance is answered with the abort.
  A process never joins an instance twice, or an older one of an initiator than it knows. Otherwise two processes in a
  loop could become each other's parents, and wait for each other for ever.
- The two phases of a rollback are the host's: `plan` is the agreement, its durable row the decision.
- Messages in transit across the checkpoints are not in them: channels must be readable again.
- A sink shows the rows of its permanent checkpoint (G6).

Messages carry the number of the newest checkpoint, tentative or not, that was taken before the send. Restoring
checkpoint k undoes every message with number k or more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from checkpoint_protocols.checkpoints.coordinated_instance import PERMANENT, decisions
from checkpoint_protocols.checkpoints.coordinated_worker import CoordinatedPhase, CoordinatedWorker, initiators
from checkpoint_protocols.ids import ChannelId, Epoch, ProcessId
from checkpoint_protocols.record_fields import counts, number
from checkpoint_protocols.recovery import (
    Failure,
    Needs,
    Part,
    Plan,
    Protocol,
    Record,
    Records,
    checkpoint_key,
    checkpoints,
)


def plan(failure: Failure) -> Plan:
    """Return the plan: failed processes restore their permanent checkpoints, and so does each receiver of undone messages."""
    decided = {name for records in failure.records.values() for name in decisions(records)}
    permanent = {process: _permanent(failure.records[process], decided) for process in failure.graph.processes}
    back = _all_who_go_back(failure, permanent)
    parts = {process: _part(process, permanent[process], back) for process in failure.graph.processes}
    row = {process: Epoch(_index(permanent[process])) for process in back}
    return Plan(failure.incarnation, row, parts)


def _permanent(records: Records, decided: Collection[str]) -> Record | None:
    """Return the newest checkpoint that counts, or None."""
    standing = [
        each for each in checkpoints(records).values() if each["kind"] == PERMANENT or each["instance"] in decided
    ]
    return standing[-1] if standing else None


def _index(permanent: Record | None) -> int:
    return 0 if permanent is None else number(permanent["index"])


def _all_who_go_back(failure: Failure, permanent: Mapping[ProcessId, Record | None]) -> dict[ProcessId, str]:
    """Return all processes that go back, each with the reason.

    A process goes back iff it received a message that a process that goes back has not sent at its checkpoint.
    """
    back = {process: "it failed" for process in failure.graph.processes if process in failure.failed}
    # The loop also visits the receivers that it appends: going back spreads along the channels.
    for process in (queue := list(back)):
        for channel in failure.graph.outputs[process]:
            receiver = failure.graph.ends[channel][1]
            if receiver not in back and _has_orphans(channel, permanent[process], failure.survivors[receiver]):
                back[receiver] = f"it received from {process} what that has not sent any more"
                queue.append(receiver)
    return back


def _has_orphans(channel: ChannelId, sender: Record | None, receiver: Record) -> bool:
    sent = counts(sender["sent"]).get(channel, 0) if sender else 0
    return counts(receiver["received"]).get(channel, 0) > sent


def _part(process: ProcessId, permanent: Record | None, back: Mapping[ProcessId, str]) -> Part:
    if process not in back:
        return Part(None, because="nothing it received is undone")
    key = checkpoint_key(_index(permanent)) if permanent else None
    return Part(key, initial=key is None, because=back[process])


PROTOCOL = Protocol(
    name="coordinated",
    title="Whoever a checkpoint depends on takes one with it, in two phases",
    source="seed 004, Recording Message Sequence Numbers (Koo and Toueg 1987), with the phases the seed omits",
    needs=Needs(replayable=True),
    worker=CoordinatedWorker,
    plan=plan,
)

__all__ = ["PROTOCOL", "CoordinatedPhase", "CoordinatedWorker", "initiators", "plan"]
