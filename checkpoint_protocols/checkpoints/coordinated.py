"""Coordinated checkpoints by message sequence numbers (P6d): whoever I depend on takes one too, or nobody does.

Seed 004, "Recording Message Sequence Numbers"; Koo and Toueg 1987.  Erratum E15: the seed has neither the two phases
nor the rule that nobody sends between them, and without either the checkpoints that result have orphans.

    initiate       tentative checkpoint; no more sends; REQUEST(last received) to everybody received from since the
                   permanent one
    REQUEST(L)     nothing up to L was sent since the permanent one: yes.  In another instance: no.
                   Else do as the initiator does, and vote when all below have
    all yes        the initiator stores the decision and tells everybody; tentative becomes permanent, sends go on
    a no, timeout  the initiator undoes it; whoever is told passes it on to those it asked
    failure        back to the permanent one; who received what is thereby unsent goes back too, and so on

Instances are named `initiator/incarnation/index`.  What the seed leaves open:

- The decision is one record of the initiator (G2).  It names all participants, which votes bring up, and stays until
  every one has its checkpoint durable as permanent.  Until then a tentative checkpoint of a decided instance counts as
  permanent in any recovery, and everybody who is left tentative by one asks the initiator: no record, no checkpoint.
- Control messages overtake each other.  A vote that comes after its instance was undone is answered with the undoing.
  Nobody joins an instance twice, or an older one of an initiator than it knows of: around a loop two that join again
  are each other's parents, an undoing of the first time hits whoever one of them waits for, and nobody gives it up.
- Two phases of a rollback are the host's: `plan` is the agreement, its durable row the decision.
- What is in transit across the checkpoints is not in them: channels must be readable again.
- A sink shows what its permanent checkpoint has (G6).

Messages carry the number of the newest checkpoint, tentative or not, that was taken before: going back to k undoes
whatever says k or more.
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
    """The failed go back to their permanent checkpoints; whoever received what that unsends, to its own."""
    decided = {name for records in failure.records.values() for name in decisions(records)}
    permanent = {process: _permanent(failure.records[process], decided) for process in failure.graph.processes}
    back = _all_who_go_back(failure, permanent)
    parts = {process: _part(process, permanent[process], back) for process in failure.graph.processes}
    row = {process: Epoch(_index(permanent[process])) for process in back}
    return Plan(failure.incarnation, row, parts)


def _permanent(records: Records, decided: Collection[str]) -> Record | None:
    """The newest checkpoint that counts."""
    standing = [
        each for each in checkpoints(records).values() if each["kind"] == PERMANENT or each["instance"] in decided
    ]
    return standing[-1] if standing else None


def _index(permanent: Record | None) -> int:
    return 0 if permanent is None else number(permanent["index"])


def _all_who_go_back(failure: Failure, permanent: Mapping[ProcessId, Record | None]) -> dict[ProcessId, str]:
    """With the reason: a process goes back iff it received what a process that goes back has not sent then."""
    back = {process: "it failed" for process in failure.graph.processes if process in failure.failed}
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
