"""A loop, an aborted instance, and late messages of it: no process stays blocked.

Requests, votes and aborts of k/1/1 overtake each other. A process that joined it again would wait for a process that
already aborted it; two such processes are each other's parents, and no process with a timeout is left.
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

ABORTED: list[Choice] = [
    ("read", "s"),
    ("deliver", "s->a", 0),
    ("deliver", "a->b", 0),
    ("deliver", "b->k", 0),
    ("deliver", "b->a", 0),
    ("timer", "k", 0),  # k/1/1 begins
    ("deliver", "k=>b", 0),  # b takes part and asks a
    ("timer", "k", 0),  # k times out
    ("deliver", "k=>b", 0),  # b aborts it and sends the abort to a
    ("deliver", "b=>a", 0),  # the request comes first: a takes part, asks s and b
    ("deliver", "a=>s", 0),
    ("stored", "s", 0, "ok"),  # s votes
    ("deliver", "b=>a", 0),  # a aborts it and sends the abort to s and b
    ("deliver", "a=>b", 1),
]
LATE: list[Choice] = [
    ("deliver", "a=>b", 0),  # a's request, after a's abort: b must not join again
    ("deliver", "s=>a", 0),  # the vote of s, answered with a second abort
    ("deliver", "b=>a", 0),  # b's request or answer
    ("deliver", "a=>s", 0),  # the first abort
    ("deliver", "a=>s", 1),  # a second request, if there is one
    ("deliver", "a=>s", 0),  # the second abort
]


def play(protocol: Protocol) -> tuple[MessageWorld, Exception | None]:
    """Play both lists as far as possible, then all remaining steps, and judge."""
    world = MessageWorld(protocol, GRAPHS["cycle"])
    world.watch()
    _, error = attempt(lambda: world, [*ABORTED, *LATE])
    return world, error


def happened(world: MessageWorld, process: str, kind: str) -> list[str]:
    return [each.label for each in world.moments or () if (each.process, each.kind) == (process, kind)]


def test_a_process_that_joins_an_instance_again_never_sends_again() -> None:
    world, error = play(JOINS_AGAIN)

    assert isinstance(error, NoEnd)
    assert "a holds" in str(error)
    assert happened(world, "s", "aborted") == ["k/1/1", "k/1/1"]


@pytest.mark.parametrize("process", ["a", "b", "s"])
def test_every_process_aborts_once_and_continues(process: str) -> None:
    world, error = play(PROTOCOL)

    assert error is None
    assert happened(world, process, "aborted") == ["k/1/1"]


def _checkpointed(world: MessageWorld) -> None:
    """One more input and its checkpoint up to the decision; k's mark is being written."""
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


def test_a_mark_that_is_stored_after_a_newer_one_is_erased_at_once() -> None:
    world = MessageWorld(PROTOCOL, GRAPHS["pair"])
    _checkpointed(world)
    _checkpointed(world)
    marks = [write.key for write in world.processes[K].writes]
    assert marks == [checkpoint_key(1), checkpoint_key(2)]

    world.do(("stored", "k", 1, "ok"))
    world.do(("stored", "k", 0, "ok"))

    assert checkpoint_key(1) not in world.processes[K].storage.framed
    assert checkpoint_key(2) in world.processes[K].storage.framed


def test_a_restart_erases_checkpoints_older_than_a_mark_stored_after_the_crash() -> None:
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
