"""Adaptive logging: log only messages that can be in transit across a line that a recovery may use (P6h).

Seed 004, "Adaptive Logging", on top of index-based checkpoints (P6e). Every message carries its sender's current
recovery line (CRL): the newest durable index that the sender knows of every process.

    send m         m.index = mine, m.crl = my known indices
    receive m      known indices = the larger of both; m.index > mine: checkpoint first
                   m.index < mine: store m in the log first; else deliver at once

Corrected (E13): the seed logs "if the sender is ahead". It argues that otherwise the sender would go back to before the
send. The opposite is true. If the sender's index is lower, a failure takes the receiver back to its newer index, before
the receipt. The sender stays after the send, so no process sends m again. The counter-example: S at 0 sends m; R at 1
receives it, unlogged; S takes 1; R fails; the line is {S1, R1} and m is lost. If the sender's index is higher, the
forced checkpoint comes first. Then m is undone with its send or included with its receipt.

Unlike P6e, a message of an earlier incarnation is logged only if its index is below mine as well. Its send was never
undone. So both send and receipt are included in every line above its index. The CRL replaces nothing that safety needs.
It carries news of complete indices with messages that are sent anyway.
"""

from __future__ import annotations

from collections.abc import Mapping

from checkpoint_protocols.checkpoints.index_based import IndexWorker, plan, rejoin
from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.machine import Effect
from checkpoint_protocols.record_fields import mapping, number
from checkpoint_protocols.recovery import Needs, Output, Protocol
from checkpoint_protocols.vocabulary import Envelope, Json, Received

CRL = "crl"


class AdaptiveWorker(IndexWorker):
    """One process. Its table is that of index-based checkpointing: only headers and the logging rule differ."""

    def _header(self) -> Mapping[str, Json]:
        return {CRL: {str(process): index for process, index in self._durable.items()}}

    def _take_in(self, event: Received) -> list[Effect]:
        return [*self._learn_line(event.message), *super()._take_in(event)]

    def _learn_line(self, message: Envelope) -> list[Effect]:
        # A recovery may have undone the indices of an earlier incarnation's line.
        if message.incarnation < self.incarnation:
            return []
        known = mapping(message.header[CRL])
        return [effect for process, index in known.items() for effect in self._learn(ProcessId(process), number(index))]

    def _must_be_logged(self, message: Envelope) -> bool:
        # E13: the seed logs if the sender is ahead. Then the forced checkpoint comes first, and nothing can be lost.
        return message.index < self.index


PROTOCOL = Protocol(
    name="adaptive-logging",
    title="Index-based checkpoints with adaptive logging",
    source="seed 004, Adaptive Logging, on Manivannan and Singhal 1996",
    needs=Needs(fifo=False),
    output=Output(keeps_order=False),
    worker=AdaptiveWorker,
    plan=plan,
    rejoin=rejoin,
)
