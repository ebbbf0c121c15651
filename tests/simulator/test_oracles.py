"""Every oracle finds its planted bug, and none in the protocol without it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

import checkpoint_lab as sim
from checkpoint_lab import oracles
from checkpoint_lab.durable import State, StateCut
from checkpoint_lab.message_world import MessageWorld
from checkpoint_lab.oracles import CutLine
from checkpoint_lab.process import Process
from checkpoint_lab.violations import Acausal, LineMovedBack, NotMaximal, Orphan, TooEarly, Violation
from checkpoint_protocols.checkpoints import uncoordinated
from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.message_logging import synchronous_logging
from checkpoint_protocols.recovery import Failure, Protocol, RecoveryPlan
from tests.simulator import markers
from tests.simulator.planted import PLANTED, CapturesTheLastMarker, either, plan_timidly


def verdict(protocol: Protocol, graph: str, oracle: str, seeds: int = 150) -> Counter[str]:
    """Oracles that condemned schedules, long and usual ones in turn, up to the first by `oracle`."""
    found: Counter[str] = Counter()
    for seed in range(seeds):
        error = either(protocol, graph, seed).error
        if error is not None:
            found[error.ORACLE if isinstance(error, Violation) else repr(error)] += 1
        if found[oracle]:
            break
    return found


@pytest.mark.parametrize(("protocol", "graph", "oracle"), PLANTED, ids=lambda value: str(getattr(value, "name", value)))
def test_a_planted_bug_is_found_by_its_oracle(protocol: Protocol, graph: str, oracle: str) -> None:
    found = verdict(protocol, graph, oracle)

    assert found[oracle] > 0, found


def test_a_maximal_line_passes_and_an_older_one_does_not() -> None:
    """O4, with a protocol that promises it."""
    assert uncoordinated.PROTOCOL.maximal
    timid = replace(uncoordinated.PROTOCOL, plan=plan_timidly)

    assert verdict(uncoordinated.PROTOCOL, "diamond", "O4", seeds=100) == Counter()
    assert verdict(timid, "diamond", "O4")["O4"] == 1


def test_a_violation_names_its_place_and_replays_from_its_trace() -> None:
    protocol, graph, _ = PLANTED[0]
    outcome = next(o for o in (sim.run(protocol, sim.GRAPHS[graph], seed) for seed in range(200)) if o.condemned)
    assert isinstance(outcome.error, Violation)

    again = sim.replay(lambda: MessageWorld(protocol, sim.GRAPHS[graph], sim.hostile(outcome.seed)), outcome)

    assert outcome.error.seed == outcome.seed
    assert outcome.error.trace == outcome.trace
    assert str(again.error) == str(outcome.error)
    assert outcome.error.messages


def test_orphans_and_vector_clocks_agree_on_every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """O1 and O13 are two definitions of the same."""
    seen: Counter[tuple[bool, bool]] = Counter()

    def compare(truth: object, line: CutLine, what: str) -> None:
        try:
            oracles.judge_causal(line, what)
        except Acausal:
            seen[bool(oracles.orphans(line)), True] += 1
        else:
            seen[bool(oracles.orphans(line)), False] += 1

    monkeypatch.setattr(oracles, "judge_consistent", compare)
    for seed in range(150):
        sim.run(markers.protocol(), sim.GRAPHS["diamond"], seed)
        sim.run(markers.protocol(worker=CapturesTheLastMarker), sim.GRAPHS["diamond"], seed)

    assert seen[False, False] > 100
    assert seen[True, True] > 20
    assert seen[True, False] == seen[False, True] == 0


P, Q = ProcessId("p"), ProcessId("q")


def line(sent: int, received: int) -> CutLine:
    p, q = State(2), State(2)
    p.sent, q.received = sent, received
    return {P: p.cut(), Q: q.cut()}


def test_o13_finds_an_event_that_the_other_cut_lacks() -> None:
    p, q = State(2), State(2)
    q.clock = [3, 1]
    q.lived = 0b10
    p.lived, p.clock = 0b1110, [3, 0]
    oracles.judge_causal({P: p.cut(), Q: q.cut()}, "good")
    p.lived, p.clock = 0b0110, [2, 0]

    with pytest.raises(Acausal, match="depends on event 3 of p"):
        oracles.judge_causal({P: p.cut(), Q: q.cut()}, "bad")


def test_orphans_are_messages_received_and_not_sent() -> None:
    assert oracles.orphans(line(sent=0b011, received=0b110)) == 0b100
    assert oracles.in_transit(line(sent=0b011, received=0b110)) == 0b001


def test_a_later_line_that_has_less_is_a_step_back() -> None:
    before, after = line(0b11, 0b11), line(0b11, 0b01)

    oracles.judge_forward(after, before, "forward")
    with pytest.raises(LineMovedBack):
        oracles.judge_forward(before, after, "back")


def test_a_line_with_an_orphan_is_no_candidate_for_the_greatest() -> None:
    """O4: an inconsistent line with more does not count."""
    empty, full = State(2), State(2)
    empty_q, full_q = State(2), State(2)
    full_q.received, full_q.lived = 0b1, 0b10
    candidates = {P: [empty.cut()], Q: [empty_q.cut(), full_q.cut()]}

    oracles.judge_maximal({P: empty.cut(), Q: empty_q.cut()}, candidates, None, "nothing was sent")

    full.sent, full.lived = 0b1, 0b10
    with pytest.raises(Violation, match="O4"):
        oracles.judge_maximal({P: full.cut(), Q: empty_q.cut()}, {**candidates, P: [full.cut()]}, None, "sent")


def test_a_job_of_any_size_is_compared_with_its_greatest_line() -> None:
    """O4 for a graph whose lines are too many to try each."""
    names = [ProcessId(f"p{number}") for number in range(40)]
    empty, later = State(1), State(1)
    later.lived = 0b10
    candidates = {name: [empty.cut(), later.cut()] for name in names}
    newest = dict.fromkeys(names, later.cut())

    oracles.judge_maximal(newest, candidates, None, "nothing was sent")
    with pytest.raises(NotMaximal, match="p7 goes back further than it must"):
        oracles.judge_maximal(newest | {names[7]: empty.cut()}, candidates, None, "timid")


def random_histories(seed: int) -> tuple[dict[ProcessId, list[StateCut]], int]:
    """Three processes that send, receive and checkpoint at random; and the messages that can be replayed."""
    draw = random.Random(seed)
    states = {ProcessId(name): State(3) for name in "pqr"}
    candidates = {name: [state.cut()] for name, state in states.items()}
    under_way: list[int] = []
    for event in range(draw.randrange(4, 30)):
        name = draw.choice(list(states))
        state, bit = states[name], 1 << event
        state.lived |= bit << 1
        if under_way and draw.random() < 0.5:
            state.received |= under_way.pop(draw.randrange(len(under_way)))
        else:
            state.sent |= bit
            under_way.append(bit)
        if draw.random() < 0.4:
            candidates[name].append(state.cut())
    return candidates, draw.getrandbits(30)


def test_the_greatest_line_agrees_with_trying_every_line() -> None:
    """O4 accepts exactly the maximum of all usable lines, process by process."""
    for seed in range(300):
        candidates, somewhere = random_histories(seed)
        kept = None if seed % 3 == 0 else somewhere
        lines = [dict(zip(candidates, cuts, strict=True)) for cuts in product(*candidates.values())]
        usable = [
            each
            for each in lines
            if not oracles.orphans(each) and not (kept is not None and oracles.in_transit(each) & ~kept)
        ]
        greatest = {name: max((each[name] for each in usable), key=lambda cut: cut.lived) for name in candidates}

        oracles.judge_maximal(greatest, candidates, kept, f"seed {seed}")
        for each in usable:
            if each != greatest:
                with pytest.raises(NotMaximal):
                    oracles.judge_maximal(each, candidates, kept, f"seed {seed}")


def test_a_message_that_no_process_sent_is_an_orphan() -> None:
    class Invents(markers.Worker):
        def _on_received(self, event):  # type: ignore[no-untyped-def]
            return super()._on_received(replace(event, message=replace(event.message, seq=event.message.seq + 1)))

    outcome = sim.run(markers.protocol(worker=Invents), sim.GRAPHS["pair"], 1, faults=sim.NO_FAULTS)

    assert isinstance(outcome.error, Orphan)


def test_a_replay_in_another_order_is_another_run() -> None:
    """O3 with regenerated sends: their bodies show the order of all deliveries."""

    def backwards(failure: Failure) -> RecoveryPlan:
        plan = synchronous_logging.PROTOCOL.plan(failure)
        parts = {name: replace(part, replay=part.replay[::-1]) for name, part in plan.parts.items()}
        return replace(plan, parts=parts)

    merging = replace(synchronous_logging.PROTOCOL, plan=backwards)

    assert verdict(synchronous_logging.PROTOCOL, "join", "O3", seeds=100) == Counter()
    assert verdict(merging, "join", "O3", seeds=600)["O3"] == 1


def test_published_rows_of_a_sink_keep_their_positions() -> None:
    sink = Process(Q, 0, 1, sim.LinearClock())
    sink.state.rows = [1, 2, 4]

    oracles.judge_rows([1, 2], sink)
    for shown in ([1, 4], [1, 2, 4, 8]):
        with pytest.raises(TooEarly):
            oracles.judge_rows(shown, sink)
    with pytest.raises(TooEarly):
        oracles.judge_row([1, 2], 1, 4, sink)
