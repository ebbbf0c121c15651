"""Drawn programs of Spark's operators, plain Spark against a job: equal output after failures and restores."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from integration_tests.campaign.trial import Results
from integration_tests.programs.histories import History, verdict
from integration_tests.spark import plain_session

PROGRAMS = 10
"""Programs of one history, which share a query, the rows and the failures."""


def programs(folder: Path, trials: int, seed: int, results: Results) -> None:
    """Compare `trials` programs, `PROGRAMS` in each history."""
    draw, lent = random.Random(seed), plain_session()
    spark = next(lent)
    for number in range(-(-trials // PROGRAMS)):
        history = History.drawn(draw.randrange(10**9), PROGRAMS)
        place = folder / str(number)
        figures, why = verdict(spark, place, history)
        figures["programs"] = PROGRAMS
        restore = "" if history.back is None else f", back to round {history.back} of {len(history.rounds)}"
        results.add(f"{history.store}, {history.mode}{restore}", figures, why, seed=history.seed)
        shutil.rmtree(place, ignore_errors=True)
    lent.close()
