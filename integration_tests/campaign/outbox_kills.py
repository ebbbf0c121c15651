"""A plain query with an outbox over Kafka and Delta, killed repeatedly, with alternating operators and state stores."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path

from integration_tests.broker import Broker
from integration_tests.campaign.trial import Results
from integration_tests.outbox.outbox_deaths import IN_CHILDREN, POINTS, PYTHON_VARIABLE, live, records, start
from integration_tests.outbox.outbox_driver import QUERIES, STORES
from integration_tests.outbox.outbox_query import Place, Row, expected, expected_keys, write_files
from integration_tests.survival.ledger import create_topic

KILLS_A_QUERY, FILES = 6, 5
_LONGEST_S = 25.0


def outbox_kills(broker: Broker, folder: Path, kills: int, seed: int, results: Results) -> None:
    """Kill `kills` times, six times per query. Drivers run in the PySpark of this environment, or of `PYTHON_VARIABLE`."""
    draw = random.Random(seed)
    kinds = list(product(QUERIES, STORES))
    pyspark = pyspark_of(os.environ.get(PYTHON_VARIABLE, sys.executable))
    for number in range(-(-kills // KILLS_A_QUERY)):
        query, state = kinds[number % len(kinds)]
        _one_query(
            broker,
            folder / f"{number:03}",
            query,
            state,
            pyspark,
            min(KILLS_A_QUERY, kills - number * KILLS_A_QUERY),
            draw,
            results,
        )


def pyspark_of(python: str) -> str:
    """Return the version of PySpark in the environment of this interpreter."""
    asked = [python, "-c", "import pyspark; print(pyspark.__version__)"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def _one_query(
    broker: Broker,
    folder: Path,
    query: str,
    state: str,
    pyspark: str,
    kills: int,
    draw: random.Random,
    results: Results,
) -> None:
    kind = f"PySpark {pyspark}, {query}, {state}"
    place, topic = Place(folder), create_topic(broker.servers, "outbox")
    folder.mkdir(parents=True)
    arguments = ("--servers", broker.servers, "--topic", topic, "--query", query, "--state", state)
    files = 0
    for _ in range(kills):
        write_files(place.inbox, range(files, files + FILES))
        files += FILES
        results.add(f"{kind}: {die(place, draw, arguments)}")
    code = live(place, "", *arguments, timeout_s=900)
    why = "" if code == 0 else f"the last driver ended with {code}"
    wanted = expected(range(files)) if query == "windows" else expected_keys(range(files))
    compared(wanted, place.rows("gold"), f"{kind}, Delta compared", why, results)
    compared(wanted, records(broker.servers, topic), f"{kind}, Kafka compared", why, results)


def die(place: Place, draw: random.Random, arguments: tuple[str, ...]) -> str:
    """Let the driver run until a kill; return the moment. A driver may also end by itself, before its moment."""
    if draw.random() < 0.7:
        point = draw.choice((*POINTS, *IN_CHILDREN))
        once = place.folder / "once"
        for used in once.glob("*") if once.is_dir() else ():
            used.unlink()
        live(place, f"{point}:kill:{draw.randint(1, 5)}", *arguments, timeout_s=900)
        return point
    driver = start(place, "", *arguments, session=True)
    try:
        driver.wait(draw.uniform(5, _LONGEST_S))
    except subprocess.TimeoutExpired:
        os.killpg(driver.pid, signal.SIGKILL)  # Python, Java, its workers and publishers at once
        driver.wait()
    return "random moment"


def compared(wanted: Counter[Row], found: Counter[Row], kind: str, why: str, results: Results) -> None:
    lost, extra = wanted - found, found - wanted
    twice = sum(times for row, times in extra.items() if row in wanted)
    figures = {"records": wanted.total(), "lost": lost.total(), "duplicated": twice, "wrong": extra.total() - twice}
    broken = any(figures[name] for name in ("lost", "duplicated", "wrong"))
    results.add(kind, figures, why or (f"{lost} {extra}"[:500] if broken else ""))
