"""Sender-based message logging: senders keep sent messages and their receipt numbers; receivers keep nothing (P6b).

Seed 004, "Sender-based Logging"; Johnson and Zwaenepoel 1987.

    send m               log[seq] = (m, -); send; again and again until it is acknowledged
    receive m            known: acknowledge again.  Early: keep.  Next: rsn += 1; ACK(seq, rsn); deliver, send nothing
    ACK(seq, rsn)        log[seq] = (m, rsn), stored; then ACKACK(rsn)
    ACKACK of all        sends go out
    checkpoint stored    COVERED(up to): senders drop the messages that it includes
    failure              newest checkpoint; all senders' later entries in the order of rsn, up to the first gap;
                         messages without rsn are sent again anyway, in any order

Erratum E12: the number is the *receiver's*, one counter for all senders, no clock. The seed's case of m and m' is a
lost acknowledgement: the receiver processed m, crashed, and no process knows the place of m. It is enough to hold the
receiver's *sends* until its receipts are fully logged. `block: receipts` is the seed's own stricter rule: nothing more
is received until then. Sinks show rows by the same rule (G6).

The guarantee depends on the place of a sender's log (option `log`):

- `stable` (the seed's "logs each message"): the sender stores message and number before ACKACK. Tolerates any number of
  failures, at any time, also of both ends.
- `volatile` (the paper's): the log is in memory and in the sender's checkpoints. Tolerates one failure at a time. A
  failure lasts from a crash until every process has started again. In addition, every receipt after its receiver's
  checkpoint must be acknowledged again. If both ends of a channel fail together, receipts can become unknown. If
  another process received a message that depends on one, `plan` raises `ProtocolViolation`: the loss is detected, not
  repaired. A sink that failed with its sender may have shown rows in an order that is lost.

A message that a failed process sent and that was not received yet is not taken from the channel, either. The process
sends it again, and only then can its log name the receipt.

Channels may lose, repeat and reorder. Between two receipts a process must depend only on its state. The seed's round of
requests to all senders is the host's report of survivors and records. `plan` takes the replay from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count, takewhile

from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.machine import ProtocolViolation
from checkpoint_protocols.message_logging.sender_log import Entry, SenderLog, durable_entries
from checkpoint_protocols.message_logging.sender_logging_worker import SenderLoggingWorker, SenderPhase
from checkpoint_protocols.message_worker import replay_of_the_failed
from checkpoint_protocols.receipt_order import ReceiptOrder
from checkpoint_protocols.record_fields import mapping
from checkpoint_protocols.recovery import (
    Failure,
    Needs,
    Option,
    Output,
    Plan,
    Protocol,
    Record,
    checkpoints,
)
from checkpoint_protocols.vocabulary import Envelope

Receipts = Mapping[int, Envelope]
"""Known receipts of one process, by rsn."""


def plan(failure: Failure) -> Plan:
    """Return the plan: failed processes restore a checkpoint and replay their receipts.

    Raises `ProtocolViolation` if a survivor or a replay depends on a receipt that is lost (see the module).
    """
    decided = replay_the_failed(failure)
    _check_dependencies(failure, decided)
    return decided


def replay_the_failed(failure: Failure) -> Plan:
    """Return the plan that replays all known receipts without a gap, without the check of dependencies."""
    known = _known_receipts(failure)
    return replay_of_the_failed(
        failure,
        lambda process: _order(failure, process).rsn,
        lambda process: _behind(_order(failure, process).rsn, known[process]),
    )


def _known_receipts(failure: Failure) -> dict[ProcessId, dict[int, Envelope]]:
    """Collect receipts from the logs of survivors, of the failed ones' checkpoints, and of all stable storage."""
    known: dict[ProcessId, dict[int, Envelope]] = {process: {} for process in failure.graph.processes}
    for entry in _entries(failure):
        if entry.rsn is not None:
            known[entry.message.target].setdefault(entry.rsn, entry.message)
    return known


def _entries(failure: Failure) -> list[Entry]:
    found: list[Entry] = []
    for process in failure.graph.processes:
        record = _base(failure, process)
        log = SenderLog.of(record, failure.table) if record else SenderLog()
        found.extend(entry for kept in log.entries.values() for entry in kept.values())
        found.extend(e for _, e, stands in durable_entries(failure.records[process], failure.table) if stands)
    return found


def _base(failure: Failure, process: ProcessId) -> Record | None:
    """Return the record that the process continues from: the current one, its newest checkpoint, or None."""
    kept = checkpoints(failure.records[process])
    return failure.survivors.get(process) or (kept[max(kept)] if kept else None)


def _order(failure: Failure, process: ProcessId) -> ReceiptOrder:
    record = _base(failure, process)
    return ReceiptOrder.of(mapping(record["order"])) if record else ReceiptOrder()


def _behind(rsn: int, known: Receipts) -> tuple[Envelope, ...]:
    """Return the receipts after `rsn`, up to the first unknown one."""
    numbers = takewhile(known.__contains__, count(rsn + 1))
    return tuple(known[number] for number in numbers)


def _check_dependencies(failure: Failure, decided: Plan) -> None:
    """Raise `ProtocolViolation` if a process keeps a message that depends on a lost receipt of its sender."""
    assert isinstance(decided.row, Mapping)  # noqa: S101 - for the type checker: it was made above
    for process, part in decided.parts.items():
        rests_on = list(_order(failure, process).depends.items())
        rests_on += [(message.source, message.index) for message in part.replay]
        for sender, rsn in rests_on:
            first_unknown = decided.row.get(ProcessId(sender))
            if first_unknown is not None and rsn >= first_unknown:
                raise ProtocolViolation(
                    f"{process} received what {sender} sent after its receipt {rsn}, of which nobody knows: with volatile"
                    f" logs {sorted(failure.failed)} must not be down together"
                )


PROTOCOL = Protocol(
    name="sender-logging",
    title="Senders log messages and the order in which they were received; receivers log nothing",
    source="seed 004, Sender-based Logging (Johnson and Zwaenepoel 1987)",
    needs=Needs(fifo=False, reliable=False, deterministic=True),
    output=Output(at_once=True),
    worker=SenderLoggingWorker,
    plan=plan,
    options={"block": Option(("sends", "receipts"))},
)

__all__ = ["PROTOCOL", "SenderLoggingWorker", "SenderPhase", "plan", "replay_the_failed"]
