"""Spark's own operators inside of a job, killed repeatedly, on both of Spark's state stores."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

from integration_tests.campaign.hard_input import feeding as growing
from integration_tests.campaign.trial import Results
from integration_tests.campaign.zombies import check_fenced
from integration_tests.survival.graph_feed import Feed, feeding
from integration_tests.survival.graphs import sparks_output
from integration_tests.survival.kills import IN_DRIVER, Kill, at_point, at_random
from integration_tests.survival.process import Driver

POINTS = (*IN_DRIVER, "STAGED")
TAKING_OVER = ("--takeover", "--lease", "10 minutes")
REST = ("--batch-files", "200")
"""Timeout of the end: on a loaded machine thousands of files wait then."""
STORES = {"HDFS-backed": (), "RocksDB": ("--rocksdb",)}


def sparks_kills(folder: Path, kills: int, seed: int, results: Results) -> None:
    """Kill `kills` times, half of them on each state store."""
    draw = random.Random(seed)
    for store, share in zip(STORES, (kills - kills // 2, kills // 2), strict=True):
        with feeding(folder / store, "sparks", "rows", options=STORES[store]) as feed:
            for number in range(share):
                kill = _drawn(draw, folder / store / f"death-{number:03}")
                name = kill.name if kill.name in POINTS else "random moment"
                results.add(f"{store}, {name}", why=_die(feed, kill))
            feed.put()
            feed.lives.drain(*REST, timeout_s=1800)
            _compare(feed, store, results)


def sparks_zombies(folder: Path, trials: int, seed: int, results: Results) -> None:
    """Freeze `trials` drivers at a random moment and wake each after its successor began; half on each state store."""
    draw = random.Random(seed)
    for store, share in zip(STORES, (trials - trials // 2, trials // 2), strict=True):
        with feeding(folder / store, "sparks", "rows", options=(*STORES[store], *TAKING_OVER)) as feed:
            for _ in range(2):
                feed.put()
            living = feed.lives.start()
            for _ in range(share):
                living, why = _woken(feed, living, draw)
                results.add(f"{store}, frozen at a random moment", why=why)
            living.kill()
            feed.put()
            feed.lives.drain(*REST, timeout_s=1800)
            _compare(feed, store, results)


def _woken(feed: Feed, zombie: Driver, draw: random.Random) -> tuple[Driver, str]:
    """Freeze the living driver, start its successor, wake the frozen one; return the successor, and the fault."""
    with growing(lambda _: feed.put(), 1):
        zombie.wait_for_events("committed", 1)
        time.sleep(draw.uniform(0, 1.5))  # a random moment of the freeze
    zombie.stop()
    feed.put()
    successor, why = feed.lives.start(), ""
    try:
        check_fenced(zombie, successor, draw)
    except AssertionError as error:
        why = str(error)
    finally:
        zombie.kill()
    return successor, why


def _drawn(draw: random.Random, folder: Path) -> Kill:
    folder.mkdir(parents=True)
    return at_point(draw.choice(POINTS), folder) if draw.random() < 0.4 else at_random(draw)


def _die(feed: Feed, kill: Kill) -> str:
    try:
        for _ in range(2):
            feed.put()
        with feed.lives.start(environment=kill.environment) as driver, growing(lambda _: feed.put(), 1):
            kill.strike(driver)
    except AssertionError as error:
        return str(error)
    return ""


def _compare(feed: Feed, store: str, results: Results) -> None:
    windows = sparks_output(feed.moments("rows"), feed.files - 1 - 2)
    seconds = Counter(key for key, _ in set(feed.moments("rows")))
    firsts = Counter((key, n) for key in seconds for n in range(1, seconds[key] + 1))
    for name, wanted, table in (("windows", windows, "table"), ("first rows", firsts, "table-way")):
        found = feed.shown(table)
        lost, extra = wanted - found, found - wanted
        twice = sum(times for row, times in extra.items() if row in wanted)
        figures = {"rows": wanted.total(), "lost": lost.total(), "duplicated": twice, "wrong": extra.total() - twice}
        results.add(f"{store}, {name} compared", figures, f"{lost} {extra}"[:500] if lost or extra else "")
