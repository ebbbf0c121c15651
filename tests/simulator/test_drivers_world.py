"""Several drivers compete for one job with crashes, pauses, outages and skewed clocks: it is sound, and bugs are found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

import checkpoint_lab as sim
from checkpoint_lab import drivers_node
from checkpoint_lab.drivers_node import TakeoverTooEarly
from checkpoint_lab.drivers_world import HOSTS, DriversWorld, Troubles
from checkpoint_lab.schedules import DRIVERS_FAULT_RATE, DRIVERS_STEPS, drive, drivers_world, replay
from checkpoint_lab.scripted import handled_cells
from checkpoint_lab.world import Cell, Choice
from spark_ckpt.coordination.standby import Standby, renewal_ms
from tests.simulator.driver_bugs import PLANTED, Planted
from tests.simulator.eager import run_drivers_long
from tests.simulator.measured import seeds_for

UNTIL_CAUGHT = 400
CALM = Troubles(*[0] * 9)
LED: list[Choice] = [("look", "a"), ("propose", "a", "main"), ("append", "a")]
"""Driver `a` reads the log first and leads."""


@pytest.mark.parametrize("schedules", [60, pytest.param(6_000, marks=pytest.mark.long)])
def test_a_job_has_one_driver_at_a_time_and_soon_a_successor(schedules: int) -> None:
    happened: Counter[str] = Counter()
    for seed in range(schedules):
        found = sim.run_drivers(seed)
        assert found.error is None, f"seed {seed}: {found.error}"
        happened.update(found.counts)
    kinds = ("begin", "crash", "pause", "cut", "away", "fail", "stop", "ask", "miss", "start", "late", "jump")
    assert min(happened[kind] for kind in kinds) > schedules // 30, happened
    assert happened["incarnations"] > 3 * schedules


@pytest.mark.parametrize("lives", [4, pytest.param(20, marks=pytest.mark.long)])
def test_a_long_running_job_has_one_driver_at_a_time(lives: int) -> None:
    assert [(seed, found.error) for seed in range(lives) if not (found := run_drivers_long(seed)).ok] == []


def test_schedules_reach_every_cell_of_the_standbys_table() -> None:
    reached: set[Cell] = set()
    for seed in range(100):
        world = drivers_world(seed)
        world.cells = reached
        drive(world, seed, DRIVERS_STEPS, DRIVERS_FAULT_RATE)
    assert handled_cells((Standby,)) <= reached


def test_a_schedule_of_drivers_replays_from_its_trace() -> None:
    found = sim.run_drivers(3)
    again = replay(lambda: drivers_world(3), found)
    assert (again.error, again.counts) == (None, found.counts)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_bug_planted_around_a_drivers_lease_is_condemned(planted: Planted) -> None:
    verdicts = map(planted.run, seeds_for("the lease of a job's driver", planted.name, range(UNTIL_CAUGHT)))
    first = next((found for found in verdicts if found.condemned), None)

    assert first is not None, "nothing was found"
    print(f"{planted.name}: seed {first.seed}")
    assert str(first.error)[:2] in planted.oracles.split("|"), first.error


def test_a_clock_at_a_fifth_of_anothers_rate_breaks_the_lease() -> None:
    """The bound is needed: a driver with such a clock is replaced by a standby with the other."""
    hosts = {"a": ("here", 20, 0), "b": ("there", 100, 0)}
    complaints = [drive(DriversWorld(hosts, CALM), seed, 200).error for seed in range(20)]
    assert any(str(error).startswith("D2") for error in complaints if error)


def led() -> DriversWorld:
    """Driver `a` leads; `b` on its host and `c` on another one wait."""
    return DriversWorld(HOSTS, Troubles()).follow([*LED, ("look", "b"), ("look", "c")])


def until(world: DriversWorld, there: Callable[[], bool]) -> None:
    """Do all possible work, and let time pass, until the condition holds."""
    while not there():
        world.do((world.choices() or world.timers())[0])


def test_a_delayed_renewal_does_not_renew_a_returned_lease() -> None:
    world = led().follow([("stop", "a"), ("propose", "a", "main"), ("append", "a"), ("pause", "a")])
    until(world, lambda: world.nodes["a"].wants_to_renew(world.now))
    world.follow([("wake", "a"), ("propose", "a", "main"), ("append", "a"), ("propose", "a", "main"), ("append", "a")])

    assert [row.kind for row, _ in world.job_log.rows[-2:]] == ["epoch", "released"]
    assert not world.nodes["a"].up


def test_a_leader_paused_beyond_the_takeover_appends_nothing() -> None:
    world = led().follow([("decide", "a"), ("propose", "a", "main"), ("pause", "a")])
    until(world, lambda: world.observer.state().incarnation > 1)
    rows = len(world.job_log.rows)
    world.follow([("wake", "a"), ("append", "a")])

    assert len(world.job_log.rows) == rows
    assert not world.nodes["a"].up


WAKES: dict[str, list[Choice]] = {
    "ends its incarnation": [("fail", "a")],
    "is about to renew": [("propose", "a", "keeper")],
    "finds the store away": [("away",), ("miss", "a"), ("back",)],
}


@pytest.mark.parametrize("first", WAKES.values(), ids=list(WAKES))
def test_a_leader_that_wakes_too_late_can_be_replaced_after_any_first_step(first: list[Choice]) -> None:
    world = led().follow([("pause", "a")])
    until(world, lambda: bool(world.nodes["b"].todo))
    world.follow([("wake", "a"), *first, ("propose", "b", "main"), ("append", "b")])

    assert world.observer.state().incarnation == 2


@pytest.mark.parametrize(
    ("sooner", "rows"), [(True, ["incarnation", "epoch"]), (False, ["incarnation", "incarnation"])]
)
def test_a_dead_leaders_late_append_lands_before_its_successor_or_never(sooner: bool, rows: list[str]) -> None:
    world = led().follow([("decide", "a"), ("propose", "a", "main"), ("crash", "a")])
    if not sooner:
        until(world, lambda: world.observer.state().incarnation > 1)
    world.do(("late", 0))

    assert [row.kind for row, _ in world.job_log.rows[1:]] == rows


def test_a_standby_waits_the_term_of_a_holder_that_died_on_another_host() -> None:
    world = DriversWorld({"a": HOSTS["a"], "c": HOSTS["c"]}, Troubles()).follow([*LED, ("look", "c"), ("crash", "a")])
    until(world, lambda: world.observer.state().incarnation > 1)

    assert world.now > world.times.lease_ms


def test_a_standby_does_not_wait_for_a_holder_that_died_on_its_own_host() -> None:
    world = DriversWorld({"a": HOSTS["a"], "b": HOSTS["b"]}, Troubles()).follow([*LED, ("look", "b"), ("crash", "a")])
    until(world, lambda: world.observer.state().incarnation > 1)

    assert world.now <= world.times.read_ms


def _flickers(world: DriversWorld) -> None:
    """Run a leader without epochs, with a short outage of the store at each third of the lease's term."""
    third = world.times.renewal_ms
    for _ in range(2_000):
        silent = world.now - world.outside.since.row
        away = silent % third in (third - 1, 0, 1) and silent > 1
        if away != world.outside.away:
            world.do(("away",) if away else ("back",))
        world.do(next(iter(world.choices()), ("advance", 1)))


def test_short_outages_of_the_store_cost_no_lease() -> None:
    world = DriversWorld(troubles=Troubles(outages=2_000))

    _flickers(world)

    assert world.counts()["miss"] > 20
    assert world.counts()["incarnations"] == 1


def test_a_keeper_that_retries_a_third_of_the_term_later_loses_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers_node, "again_ms", renewal_ms)

    with pytest.raises(TakeoverTooEarly, match="renews in time"):
        _flickers(DriversWorld(troubles=Troubles(outages=2_000)))
