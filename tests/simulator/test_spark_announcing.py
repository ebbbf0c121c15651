"""A driver that was paused within a publish does not announce an epoch that its successor published."""

from __future__ import annotations

import pytest
from host_bugs import a_replaced_driver_announces_what_its_successor_published, core_with

from checkpoint_lab import SparkWorld
from checkpoint_lab.spark_driver import shipped
from checkpoint_lab.violations import Violation
from spark_ckpt.coordination.messages import Outcome

MOST_STEPS = 5_000


def woken(core_of):
    """The first driver at its end, after a pause in the publish of an epoch that its successor has published."""
    world = SparkWorld(core_of, rows=4)
    world.do(("begin",))
    sink, epoch = until(world, 0, lambda: asked(world))
    world.do(("end", "usurped"))
    until(world, 1, lambda: world.sinks[sink].published_by.get(epoch) == 2)
    world.do(("publish", 0, sink, "ok"))
    stale = world.drivers[0]
    until(world, 0, lambda: stale.ending is not None or not stale.busy)
    return stale


def asked(world):
    """A sink, and an epoch of the first driver that its publisher may publish at once."""
    lanes = world.drivers[0].lanes.values()
    return next(((lane.sink, lane.now.epoch) for lane in lanes if lane.now and lane.now.files), None)


def until(world, number, reached):
    """Let one driver work without faults."""
    for _ in range(MOST_STEPS):
        if found := reached():
            return found
        own = [choice for choice in world.choices() if len(choice) > 1 and choice[1] == number]
        timers = [choice for choice in world.timers() if choice[1] == number]
        world.do((own or timers)[0])
    raise AssertionError(f"driver {number} does not get there in {MOST_STEPS} steps")


def test_a_driver_that_was_replaced_within_a_publish_ends_as_fenced():
    stale = woken(shipped)
    assert stale.ending.outcome is Outcome.FENCED


def test_a_driver_that_announces_its_successors_publish_is_condemned():
    with pytest.raises(Violation, match=r"O6.*incarnation 1 announces epoch"):
        woken(core_with(a_replaced_driver_announces_what_its_successor_published))
