"""A loop, an instance that is given up, and messages of it that come late: everybody is free in the end.

Requests, votes and undoings of k/1/1 overtake each other. Whoever joined again would wait for somebody who was undone
by the undoing of its first time, and two of them are each other's parents: nobody is left who loses patience.
"""

from __future__ import annotations

import pytest

from checkpoint_lab import GRAPHS, Choice, MessageWorld
from checkpoint_lab.explore import attempt
from checkpoint_lab.violations import NoEnd
from checkpoint_protocols.checkpoints.coordinated import PROTOCOL
from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.recovery import Protocol, checkpoint_key
from tests.protocol.literal.coordinated import JOINS_AGAIN

K = ProcessId("k")

GIVEN_UP: list[Choice] = [
    ("read", "s"),
    ("deliver", "s->a", 0),
    ("deliver", "a->b", 0),
    ("deliver", "b->k", 0),
    ("deliver", "b->a", 0),
    ("timer", "k", 0),  # k/1/1 begins
    ("deliver", "k=>b", 0),  # b takes part and asks a
    ("timer", "k", 0),  # k loses patience
    ("deliver", "k=>b", 0),  # b undoes it and tells a
    ("deliver", "b=>a", 0),  # the request comes first: a takes part, asks s and b
    ("deliver", "a=>s", 0),
    ("stored", "s", 0, "ok"),  # s votes
    ("deliver", "b=>a", 0),  # a undoes it, tells s and b
    ("deliver", "a=>b", 1),
]
LATE: list[Choice] = [
    ("deliver", "a=>b", 0),  # a's request, after a's undoing: b must not join again
    ("deliver", "s=>a", 0),  # the vote of s, answered with a second undoing
    ("deliver", "b=>a", 0),  # what b asks or answers a
    ("deliver", "a=>s", 0),  # the first undoing
    ("deliver", "a=>s", 1),  # the request of a second time, if there is one
    ("deliver", "a=>s", 0),  # the second undoing
]


def play(protocol: Protocol) -> tuple[MessageWorld, Exception | None]:
    """Both halves, as far as they are possible; then everything that is left, and the verdict."""
    world = MessageWorld(protocol, GRAPHS["cycle"])
    world.watch()
    _, error = attempt(lambda: world, [*GIVEN_UP, *LATE])
    return world, error


def happened(world: MessageWorld, process: str, kind: str) -> list[str]:
    return [each.label for each in world.moments or () if (each.process, each.kind) == (process, kind)]


def test_whoever_joins_an_instance_again_never_sends_again() -> None:
    world, error = play(JOINS_AGAIN)

    assert isinstance(error, NoEnd)
    assert "a holds" in str(error)
    assert happened(world, "s", "aborted") == ["k/1/1", "k/1/1"]


@pytest.mark.parametrize("process", ["a", "b", "s"])
def test_everybody_is_undone_once_and_goes_on(process: str) -> None:
    world, error = play(PROTOCOL)

    assert error is None
    assert happened(world, process, "aborted") == ["k/1/1"]


def _checkpointed(world: MessageWorld) -> None:
    """One more input, and a checkpoint of it as far as its decision; the mark of k is under way."""
    begins = next(choice for choice in world.periodic() if choice[1] == K)
    for choice in (("read", "s"), ("deliver", "s->k", 0), begins, ("deliver", "k=>s", 0)):
        world.do(choice)
    newest = len(world.processes[K].writes) - 1
    for choice in (("stored", "s", 0, "ok"), ("deliver", "s=>k", 0), ("stored", "k", newest, "ok")):
        world.do(choice)
    for choice in (
        ("stored", "k", newest, "ok"),
        ("deliver", "k=>s", 0),
        ("stored", "s", 0, "ok"),
        ("deliver", "s=>k", 0),
    ):
        world.do(choice)


def test_a_mark_that_is_stored_behind_a_newer_one_goes_at_once() -> None:
    world = MessageWorld(PROTOCOL, GRAPHS["pair"])
    _checkpointed(world)
    _checkpointed(world)
    marks = [write.key for write in world.processes[K].writes]
    assert marks == [checkpoint_key(1), checkpoint_key(2)]

    world.do(("stored", "k", 1, "ok"))
    world.do(("stored", "k", 0, "ok"))

    assert checkpoint_key(1) not in world.processes[K].storage.framed
    assert checkpoint_key(2) in world.processes[K].storage.framed


def test_who_dies_before_its_mark_is_stored_leaves_nothing_older_behind() -> None:
    world = MessageWorld(PROTOCOL, GRAPHS["pair"])
    _checkpointed(world)
    world.do(("stored", "k", 0, "ok"))
    _checkpointed(world)
    world.do(("crash", "k"))
    world.do(("stored", "k", 0, "ok"))
    assert {checkpoint_key(1), checkpoint_key(2)} <= world.processes[K].storage.framed.keys()

    world.do(("recover",))
    world.do(("restore", "k"))

    assert checkpoint_key(1) not in world.processes[K].storage.framed
    assert checkpoint_key(2) in world.processes[K].storage.framed
