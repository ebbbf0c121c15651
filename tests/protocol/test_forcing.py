"""With forced checkpoints (HMNR) every checkpoint belongs to some line; without them, some do not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint_protocols.checkpoints.recovery_line import recovery_line
from checkpoint_protocols.checkpoints.uncoordinated import Forcing
from checkpoint_protocols.ids import ProcessId
from tests.protocol.histories import STEPS, History, random_steps

P, Q, R = ProcessId("p"), ProcessId("q"), ProcessId("r")


class ForcedHistory(History):
    """Every message carries its header; the rule takes a checkpoint before some deliveries."""

    rule = Forcing

    def __init__(self, processes, fifo, steps):
        names = [ProcessId("pqrs"[number]) for number in range(processes)]
        self.forcing = {name: self.rule(name, names) for name in names}
        self.headers = {}
        self.forced = 0
        super().__init__(processes, fifo, steps)

    def _send(self, channel):
        sender, target = self.ends[channel]
        super()._send(channel)
        self.headers[channel, len(self.sent[channel])] = json.loads(json.dumps(self.forcing[sender].send(target)))

    def _receive(self, channel, whom):
        receiver, queue = self.ends[channel][1], self.queues[channel]
        header = self.headers[channel, queue[0 if self.fifo else whom % len(queue)][0]]
        if self.forcing[receiver].must_come_first(header):
            self.forced += 1
            self._checkpoint(receiver)
        self.forcing[receiver].learn(header)
        super()._receive(channel, whom)

    def _checkpoint(self, process):
        if self.known[process]:
            self.forcing[process].checkpoint(len(self.known[process]))
        super()._checkpoint(process)


def useless(history):
    """Checkpoints of no line: the greatest line with the process at that checkpoint or before lacks them."""
    found = []
    for process in history.processes:
        for index in range(len(history.known[process])):
            candidates = history.candidates(frozenset())
            candidates[process] = candidates[process][: index + 1]
            if recovery_line(candidates, history.ends).chosen[process].index != index:
                found.append((process, index))
    return found


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 4), st.booleans(), STEPS)
def test_no_checkpoint_is_useless(processes, fifo, steps):
    assert useless(ForcedHistory(processes, fifo, steps)) == []


class Zigzag(Forcing):
    """Planted: the first half of the rule is missing."""

    def must_come_first(self, header):
        return header["saved"][self.me] == self.saved[self.me] and header["taken"][self.me]


class Cycle(Forcing):
    """Planted: the second half is missing."""

    def must_come_first(self, header):
        ahead = header["clock"] > self.clock
        return ahead and any(self.sent_to[p] and header["greater"][p] for p in self._everybody)


class Never(Forcing):
    """No rule: plain uncoordinated checkpoints."""

    def must_come_first(self, header):
        return False


class Deaf(Forcing):
    """Planted: ignores headers."""

    def learn(self, header):
        """Removed."""


@pytest.mark.parametrize("rule", [Zigzag, Cycle, Never, Deaf])
def test_without_the_rule_some_checkpoint_is_useless(rule):
    history_of = type("Planted", (ForcedHistory,), {"rule": rule})
    assert any(useless(history_of(3, True, random_steps(seed))) for seed in range(3_000))


def test_it_forces_less_often_than_a_higher_index_would():
    class HigherIndex(Forcing):
        def must_come_first(self, header):
            return header["clock"] > self.clock

    by_index = type("ByIndex", (ForcedHistory,), {"rule": HigherIndex})
    seeds = range(200)
    hmnr = sum(ForcedHistory(4, True, random_steps(seed)).forced for seed in seeds)
    index = sum(by_index(4, True, random_steps(seed)).forced for seed in seeds)
    assert hmnr < index


def test_forcing_survives_a_record():
    forcing = Forcing(P, (P, Q, R))
    forcing.learn(Forcing(Q, (P, Q, R)).send(P))
    forcing.send(R)
    again = Forcing(P, (P, Q, R), forcing.as_record())
    assert again.as_record() == forcing.as_record()
