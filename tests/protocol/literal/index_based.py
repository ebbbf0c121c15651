"""Index-based checkpoints with seed 004's rules for older incarnations and synchronized clocks."""

from __future__ import annotations

from dataclasses import replace

from checkpoint_protocols.checkpoints.index_based import PROTOCOL, IndexWorker
from checkpoint_protocols.ids import Epoch
from checkpoint_protocols.incarnation import Age, age
from checkpoint_protocols.machine import Drop, Effect
from checkpoint_protocols.message_machine import APP
from checkpoint_protocols.vocabulary import Envelope, Received


class NewestRowOnly(IndexWorker):
    """E14, as in lecture notes: messages are compared with the newest recovery only."""

    def _other_incarnation(self, event: Received, message: Envelope) -> list[Effect] | None:
        if message.incarnation > self.incarnation or message.kind != APP:
            return super()._other_incarnation(event, message)
        before = type(message.incarnation)(self.incarnation - 1)
        newest = {self.incarnation: self.table[self.incarnation]}
        verdict = age(message.source, before, Epoch(message.index), self.incarnation, newest)
        return [Drop(event, "its send was undone")] if verdict is Age.UNDONE else None


class OlderIsStale(IndexWorker):
    """E14: the number "can be used to eliminate duplicate messages": all of an older incarnation are dropped."""

    def _other_incarnation(self, event: Received, message: Envelope) -> list[Effect] | None:
        if message.incarnation > self.incarnation:
            return super()._other_incarnation(event, message)
        return [Drop(event, "it is of an older incarnation")]


class RemembersByCheckpoint(IndexWorker):
    """E8: the checkpoint before the delivery "ensures that we remember the message": nothing is logged."""

    def _must_be_logged(self, message: Envelope) -> bool:
        return False


class CoversTheReplay(IndexWorker):
    """Not of the seed: a checkpoint taken before the end of the replay counts as containing all of it."""

    def _cover(self, low: int) -> None:
        self._covered = dict.fromkeys(self._log, low) | self._covered


COVERS_THE_REPLAY = replace(PROTOCOL, worker=CoversTheReplay, sound=False)
NEWEST_ROW_ONLY = replace(PROTOCOL, worker=NewestRowOnly, sound=False)
OLDER_IS_STALE = replace(PROTOCOL, worker=OlderIsStale, sound=False)
REMEMBERS_BY_CHECKPOINT = replace(PROTOCOL, worker=RemembersByCheckpoint, sound=False)
