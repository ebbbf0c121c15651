"""The interval dependency graph as seed 004 draws it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from checkpoint_protocols.checkpoints.uncoordinated import PROTOCOL, IntervalGraph, Marks, UncoordinatedWorker, plan
from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.recovery import Birth


class ReceiverToSender(IntervalGraph):
    """E7: "an edge is drawn from each interval during which messages were received to the interval they were sent"."""

    def _connect(self, process: ProcessId, own: Marks) -> None:
        super()._connect(process, Marks({index: {} for index in own.checkpoints}))
        for index, before, after in own.intervals():
            for sender, interval in after.items():
                if interval > before.get(sender, -1):
                    self._edge((process, index), self._node(sender, interval))


class TakesWhatItBeganForDone(UncoordinatedWorker):
    """An incarnation begins with nothing to save: the unfinished checkpoint of the last one counts as saved."""

    def __init__(self, birth: Birth) -> None:
        super().__init__(birth)
        self._unchanged = self._work()


RECEIVER_TO_SENDER = replace(PROTOCOL, plan=partial(plan, graph_of=ReceiverToSender), sound=False)
TAKES_WHAT_IT_BEGAN_FOR_DONE = replace(PROTOCOL, worker=TakesWhatItBeganForDone)
