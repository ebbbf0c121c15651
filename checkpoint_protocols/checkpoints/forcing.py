"""Checkpoints forced by messages so that none is useless: the rule of Helary, Mostefaoui, Netzer and Raynal (HMNR).

A checkpoint is useless if a zigzag of messages leads from it back to before it: no line can contain it. One more
checkpoint before certain deliveries breaks every such cycle. Index-based checkpointing forces at every higher index of
a sender. This rule forces less and pays with O(N) numbers per message. A forced checkpoint precedes the delivery if one
of these holds:

- The sender's clock is larger than mine. In addition, as far as the sender knows, a process I sent to since my
  checkpoint has a smaller clock than the sender.
- The sender's past contains my newest checkpoint and a later checkpoint of another process: a cycle through me.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.record_fields import mapping, number
from checkpoint_protocols.vocabulary import Json

Flags = dict[ProcessId, bool]


class Forcing:
    """Knowledge of one process. All fields are per process of the graph; `clock` grows with checkpoints and receipts.

    `sent_to`: since my checkpoint. `greater`: my clock is larger than theirs, as far as I know. `saved`: their newest
    checkpoint in my past. `taken`: a checkpoint lies on a path from that one to me.
    """

    def __init__(self, me: ProcessId, processes: Iterable[ProcessId], record: Json = None) -> None:
        self.me = me
        self._everybody = tuple(processes)
        self._others = tuple(process for process in self._everybody if process != me)
        self.clock = 0
        self.saved = dict.fromkeys(self._everybody, 0)
        self.sent_to: Flags = {}
        self.greater: Flags = {}
        self.taken: Flags = {}
        if record is None:
            self.checkpoint(0)
        else:
            self._read(mapping(record))

    def checkpoint(self, index: int) -> None:
        """Record my checkpoint `index`."""
        self.sent_to = dict.fromkeys(self._everybody, False)
        self.greater = {process: process != self.me for process in self._everybody}
        self.taken = {process: process != self.me for process in self._everybody}
        self.clock += 1
        self.saved[self.me] = index

    def send(self, target: ProcessId) -> Mapping[str, Json]:
        """Return the header of a message to `target`, and record the send."""
        self.sent_to[target] = True
        # Receivers do not use `sent_to`, so it stays local.
        return {field: value for field, value in self.as_record().items() if field != "sent_to"}

    def must_come_first(self, header: Mapping[str, Json]) -> bool:
        """Return True if a checkpoint has to precede the delivery of the message with this header."""
        greater, taken, saved = mapping(header["greater"]), mapping(header["taken"]), mapping(header["saved"])
        ahead = number(header["clock"]) > self.clock
        zigzag = ahead and any(self.sent_to[process] and greater[process] for process in self._everybody)
        cycle = saved[self.me] == self.saved[self.me] and bool(taken[self.me])
        return zigzag or cycle

    def learn(self, header: Mapping[str, Json]) -> None:
        """Merge the header of a message that is being delivered."""
        self._learn_clock(number(header["clock"]), mapping(header["greater"]))
        saved, taken = mapping(header["saved"]), mapping(header["taken"])
        for process in self._others:
            theirs = number(saved[process])
            if theirs > self.saved[process]:
                self.saved[process], self.taken[process] = theirs, bool(taken[process])
            elif theirs == self.saved[process]:
                self.taken[process] = self.taken[process] or bool(taken[process])

    def _learn_clock(self, clock: int, greater: Mapping[str, Json]) -> None:
        if clock > self.clock:
            self.clock = clock
            self.greater = {process: process != self.me and bool(greater[process]) for process in self._everybody}
        elif clock == self.clock:
            self.greater = {process: mine and bool(greater[process]) for process, mine in self.greater.items()}

    def as_record(self) -> dict[str, Json]:
        """Return the knowledge as JSON, for a checkpoint."""
        flags = {"sent_to": self.sent_to, "greater": self.greater, "taken": self.taken}
        found: dict[str, Json] = {name: {str(p): flag for p, flag in each.items()} for name, each in flags.items()}
        return {**found, "clock": self.clock, "saved": {str(p): index for p, index in self.saved.items()}}

    def _read(self, record: Mapping[str, Json]) -> None:
        self.clock = number(record["clock"])
        self.saved = {ProcessId(p): number(index) for p, index in mapping(record["saved"]).items()}
        self.sent_to, self.greater, self.taken = (
            {ProcessId(p): bool(flag) for p, flag in mapping(record[name]).items()}
            for name in ("sent_to", "greater", "taken")
        )
