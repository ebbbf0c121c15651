"""Planted bugs, and the number of seeds until a schedule is condemned."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from time import process_time

import pytest

import checkpoint_lab as sim
from checkpoint_lab.spark_driver import CoreOf, shipped
from integration_tests.survival.process import ROOT
from tests.protocol import audited, test_line_bugs, test_logging_bugs, test_snapshot_bugs
from tests.protocol.long_runs import play_long
from tests.simulator.driver_bugs import PLANTED as IN_DRIVERS
from tests.simulator.planted import PLANTED as IN_MARKERS
from tests.simulator.planted import either
from tests.simulator.return_bugs import PLANTED as IN_RETURNS
from tests.simulator.spark_lives import run as run_spark
from tests.simulator.surroundings_bugs import PLANTED as IN_SURROUNDINGS

sys.path.insert(0, str(ROOT / "tests" / "simulator"))
SEEDS = 400
"""Number of seeds after which a bug counts as not caught."""
Fails = Callable[[int], bool]


@dataclass(frozen=True)
class Caught:
    """`seeds` schedules ran, and the last one was condemned; None: none was. `seconds`: processor time of all of them."""

    where: str
    bug: str
    seeds: int | None
    seconds: float = 0.0


def caught() -> Iterator[Caught]:
    """All planted bugs."""
    begun = process_time()
    for each in _all():
        yield replace(each, seconds=process_time() - begun)
        begun = process_time()


def _all() -> Iterator[Caught]:
    for where, bug, fails in _planted():
        yield Caught(where, bug, seeds_until(fails))
    yield from _in_the_rules()


def seeds_until(fails: Fails, seeds: Iterable[int] = range(SEEDS)) -> int | None:
    return next((number for number, seed in enumerate(seeds, 1) if fails(seed)), None)


def _planted() -> Iterator[tuple[str, str, Fails]]:
    for bug, planted in IN_SURROUNDINGS.items():
        yield "surroundings", bug, lambda seed, planted=planted: planted.run(seed).condemned
    for protocol, graph, oracle in IN_MARKERS:
        name = f"{oracle} on {graph}, {getattr(protocol.worker, '__name__', protocol.name)}"
        yield "markers of the tests", name, lambda seed, p=protocol, g=graph: either(p, g, seed).condemned
    for bug, (protocol, graph, _) in test_logging_bugs.BUGS.items():
        yield "logging", bug, lambda seed, p=protocol, g=graph: play_long(p, sim.GRAPHS[g], seed).condemned
    for bug, (protocol, _) in test_line_bugs.BUGS.items():
        yield "checkpoints", bug, lambda seed, p=protocol: test_line_bugs.play(p, seed).condemned
    for bug, (protocol, _) in test_snapshot_bugs.BUGS.items():
        yield "snapshots", bug, lambda seed, p=protocol: audited.play_long(p, seed).condemned
    for bug in IN_RETURNS:
        yield "leases that are returned", bug.name, lambda seed, b=bug: b.run(seed).complaint is not None
    for bug in IN_DRIVERS:
        yield "the lease of a job's driver", bug.name, lambda seed, b=bug: b.run(seed).condemned


def _in_the_rules() -> Iterator[Caught]:
    from ahead_bugs import PLANTED_AHEAD
    from edge_bugs import PATCHED as IN_COUNTING
    from edge_bugs import PLANTED as ON_EDGES
    from holding_bugs import PLANTED as HELD_BACK
    from host_bugs import PLANTED, core_with
    from operated_bugs import CATCHERS
    from operated_bugs import PLANTED as IN_GOING_BACK
    from outbox_bugs import CATCHERS as OF_OUTBOXES
    from outbox_bugs import OVERLAPPING
    from outbox_bugs import OVERLAPPING_CATCHERS as OF_OVERLAP
    from outbox_bugs import PLANTED as IN_OUTBOXES
    from outbox_format_bugs import CATCHERS as OF_FORMATS
    from outbox_format_bugs import PLANTED as IN_FORMATS
    from rules_bugs import PLANTED_AROUND

    for where, plants in (("an incarnation", PLANTED), ("edges", ON_EDGES), ("rows held back", HELD_BACK)):
        for plant in plants:
            yield Caught(f"rules of {where}", plant.__name__, seeds_until(partial(_spark, core_of=core_with(plant))))
    for plant in PLANTED_AROUND:
        yield _patched("rules beside it", plant)
    for where, plants in (("rules of edges", IN_COUNTING), ("rows sent early", PLANTED_AHEAD)):
        for plant in plants:
            yield _patched(where, plant, lambda patch: patch.setattr)
    for plant in IN_GOING_BACK:
        yield _patched(
            "rules of going back", plant, fails=lambda seed: sim.run_operated(seed).condemned, seeds=CATCHERS
        )
    for plant in OVERLAPPING:
        yield _patched(
            "outbox with overlap",
            plant,
            fails=lambda seed: sim.run_overlapping(seed).condemned,
            seeds=(*OF_OVERLAP, *range(400)),
        )
    for plant in IN_OUTBOXES:
        yield _patched(
            "outbox of a plain query", plant, fails=lambda seed: sim.run_outbox(seed).condemned, seeds=OF_OUTBOXES
        )
    for plant in IN_FORMATS:
        yield _patched(
            'format("outbox")', plant, fails=lambda seed: sim.run_outbox_format(seed).condemned, seeds=OF_FORMATS
        )


def _spark(seed: int, core_of: CoreOf = shipped) -> bool:
    return run_spark(seed, core_of).condemned


def _patched(
    where: str,
    plant: Callable[..., object],
    given: Callable[[pytest.MonkeyPatch], object] = lambda patch: patch,
    fails: Fails = _spark,
    seeds: Iterable[int] = range(SEEDS),
) -> Caught:
    """`given`: selects the plant's argument from the patch."""
    with pytest.MonkeyPatch.context() as patch:
        plant(given(patch))
        return Caught(where, plant.__name__, seeds_until(fails, seeds))
