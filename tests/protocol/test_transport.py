"""Control messages over channels that lose and repeat: each is delivered once, or its sender repeats it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from checkpoint_protocols.graph import control_between
from checkpoint_protocols.ids import Incarnation, ProcessId, TimerId
from checkpoint_protocols.machine import Drop, Effect, InvariantBroken, missing_cells
from checkpoint_protocols.transport import (
    DOUBLINGS_MAX,
    HEARD,
    REPEAT,
    REPEAT_MS,
    Asked,
    Joined,
    Transport,
    TransportPhase,
)
from checkpoint_protocols.vocabulary import Deliver, Envelope, Received, Send, SetTimer, TimerElapsed

P, Q = ProcessId("p"), ProcessId("q")
ONE, TWO = Incarnation(1), Incarnation(2)


def message_of(kind: str = "vote", incarnation: Incarnation = ONE) -> Envelope:
    return Envelope(P, Q, incarnation, 0, 3, kind, {}, {"of": 3})


def sent(effects: Sequence[Effect]) -> list[Envelope]:
    return [effect.message for effect in effects if isinstance(effect, Send)]


def arrives(transport: Transport, message: Envelope) -> list[Effect]:
    return transport.handle(Received(control_between(message.source, message.target), message))


def delivered(effects: Sequence[Effect]) -> list[Envelope]:
    return [each.event.message for each in effects if isinstance(each, Deliver) and isinstance(each.event, Received)]


def rings(transport: Transport, effects: Sequence[Effect]) -> list[Effect]:
    timer = next(effect for effect in effects if isinstance(effect, SetTimer))
    return transport.handle(timer.elapsed)


def test_the_table_is_total() -> None:
    assert missing_cells(Transport) == []


def test_a_message_that_comes_twice_is_delivered_once_and_unchanged() -> None:
    (numbered,) = sent(Transport(P, ONE).handle(Asked(message_of())))
    there = Transport(Q, ONE)

    first, second = arrives(there, numbered), arrives(there, numbered)

    assert delivered(first) == [message_of()]
    assert delivered(second) == []
    assert any(isinstance(effect, Drop) for effect in second)


def test_each_copy_is_acknowledged_because_the_first_acknowledgement_may_be_lost() -> None:
    (numbered,) = sent(Transport(P, ONE).handle(Asked(message_of())))
    there = Transport(Q, ONE)

    answers = [*sent(arrives(there, numbered)), *sent(arrives(there, numbered))]

    assert [(each.kind, each.target, each.seq) for each in answers] == [(HEARD, P, 1)] * 2


def test_an_unacknowledged_message_is_repeated_with_doubling_delays() -> None:
    here = Transport(P, ONE)
    effects = here.handle(Asked(message_of()))
    delays = []
    for _ in range(DOUBLINGS_MAX + 2):
        delays += [effect.delay_ms for effect in effects if isinstance(effect, SetTimer)]
        effects = rings(here, effects)
        assert [each.body for each in sent(effects)] == [{"of": 3}]

    assert delays == [REPEAT_MS * 2**doublings for doublings in (*range(DOUBLINGS_MAX + 1), DOUBLINGS_MAX)]


def test_a_message_is_repeated_soon_although_an_older_one_was_repeated_often() -> None:
    """An unreachable peer does not delay the repetition of a message to another peer."""
    here = Transport(P, ONE)
    effects = here.handle(Asked(message_of("to a peer out of reach")))
    for _ in range(DOUBLINGS_MAX):
        slow = effects = rings(here, effects)

    effects = here.handle(Asked(message_of()))
    assert [effect.delay_ms for effect in effects if isinstance(effect, SetTimer)] == [REPEAT_MS]
    assert [each.kind for each in sent(rings(here, effects))] == ["to a peer out of reach", "vote"]
    assert rings(here, slow) == []


def test_an_acknowledged_message_is_not_repeated() -> None:
    here, there = Transport(P, ONE), Transport(Q, ONE)
    effects = here.handle(Asked(message_of()))
    answers = sent(arrives(there, sent(effects)[0]))
    arrives(here, answers[0])

    assert here.phase is TransportPhase.QUIET
    assert rings(here, effects) == []
    assert isinstance(arrives(here, answers[0])[0], Drop)


def test_only_unacknowledged_messages_are_repeated() -> None:
    here, there = Transport(P, ONE), Transport(Q, ONE)
    effects = here.handle(Asked(message_of("first")))
    (second,) = sent(here.handle(Asked(message_of("second"))))
    arrives(here, sent(arrives(there, second))[0])

    assert [each.kind for each in sent(rings(here, effects))] == ["first"]


def test_an_old_timer_repeats_nothing() -> None:
    here = Transport(P, ONE)
    effects = here.handle(Asked(message_of()))
    rings(here, effects)

    assert rings(here, effects) == []
    assert here.handle(TimerElapsed(REPEAT, TimerId(99), 0)) == []


def test_a_process_in_a_newer_incarnation_repeats_no_older_message() -> None:
    here = Transport(P, ONE)
    effects = here.handle(Asked(message_of()))
    here.handle(Joined(TWO))

    assert rings(here, effects) == []
    assert sent(here.handle(Asked(message_of(incarnation=TWO))))[0].seq == 1


def test_the_message_of_a_newer_incarnation_is_not_delivered_again_after_the_join() -> None:
    (numbered,) = sent(Transport(P, TWO).handle(Asked(message_of(incarnation=TWO))))
    there = Transport(Q, ONE)
    assert delivered(arrives(there, numbered)) == [message_of(incarnation=TWO)]
    there.handle(Joined(TWO))

    assert delivered(arrives(there, numbered)) == []


def test_equal_numbers_of_two_incarnations_are_two_messages() -> None:
    old = sent(Transport(P, ONE).handle(Asked(message_of())))[0]
    new = sent(Transport(P, TWO).handle(Asked(message_of(incarnation=TWO))))[0]
    there = Transport(Q, ONE)

    assert old.seq == new.seq
    assert len(delivered(arrives(there, old)) + delivered(arrives(there, new))) == 2


def test_a_message_of_an_older_incarnation_is_acknowledged_and_not_delivered() -> None:
    (numbered,) = sent(Transport(P, ONE).handle(Asked(message_of())))
    there = Transport(Q, TWO)

    effects = arrives(there, numbered)

    assert delivered(effects) == []
    assert [each.kind for each in sent(effects)] == [HEARD]


def test_an_acknowledgement_of_another_incarnation_is_dropped() -> None:
    here = Transport(P, TWO)
    here.handle(Asked(message_of(incarnation=TWO)))
    old = Envelope(Q, P, ONE, 1, 3, HEARD, {}, None)

    assert isinstance(arrives(here, old)[0], Drop)
    assert here.phase is TransportPhase.WAITING


def test_the_record_of_received_numbers_is_compact() -> None:
    here, there = Transport(P, ONE), Transport(Q, ONE)
    numbered = [sent(here.handle(Asked(message_of())))[0] for _ in range(100)]
    for message in (*numbered[1:], numbered[0]):
        arrives(there, message)

    (heard,) = there.heard.values()
    assert (heard.all_up_to, heard.beyond) == (100, set())


def test_incarnations_do_not_go_back() -> None:
    with pytest.raises(InvariantBroken, match="incarnations grow"):
        Transport(P, TWO).handle(Joined(ONE))


def test_a_number_far_below_the_newest_is_not_delivered_again() -> None:
    here, there = Transport(P, ONE), Transport(Q, ONE)
    numbered = [sent(here.handle(Asked(message_of())))[0] for _ in range(3)]
    for message in numbered:
        arrives(there, message)

    assert [delivered(arrives(there, message)) for message in numbered] == [[], [], []]


def test_a_join_forgets_older_incarnations_only() -> None:
    there = Transport(Q, ONE)
    for life in (1, 2, 3):
        incarnation = Incarnation(life)
        (numbered,) = sent(Transport(P, incarnation).handle(Asked(message_of(incarnation=incarnation))))
        arrives(there, numbered)
    there.handle(Joined(TWO))

    assert set(there.heard) == {(P, TWO), (P, Incarnation(3))}
