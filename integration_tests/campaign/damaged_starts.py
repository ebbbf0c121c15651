"""The damaged job is started: its table is exact in the end, or the start fails with a typed error that has recovery advice."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from integration_tests.campaign.damages import HOW, Patient, kinds_of
from integration_tests.campaign.delta_kills import PROGRAM
from integration_tests.campaign.trial import Results
from integration_tests.survival.process import Driver, Lives

Figures = Counter[tuple[str, int, int]]


def damaged_starts(folder: Path, trials: int, seed: int, results: Results) -> None:
    """Damage the store `trials` times, and each time start the job, which drains the input."""
    patient, draw = Patient.made(folder, seed), random.Random(seed)
    lives = Lives(folder / "starts", [*patient.arguments(), "--available-now"], program=PROGRAM)
    lives.drain()
    wanted = _rows(patient)
    patient.heal()
    kinds = kinds_of(patient)
    for _ in range(trials):
        patient.heal()
        kind = draw.choice(sorted(kinds))
        path, how = draw.choice(kinds[kind]), draw.choice(sorted(HOW))
        HOW[how](path, draw)
        with lives.start() as driver:
            why = _judged(driver, patient, wanted)
        results.add(f"start, {kind}, {how}", {"ended with": driver.exit_code or 0}, f"{path}: {why}" if why else "")


def _judged(driver: Driver, patient: Patient, wanted: Figures) -> str:
    if driver.wait_for_end(300) != 0:
        failed = driver.events("failed")
        advised = bool(failed) and "  next: " in failed[0]["message"]
        return "" if advised else f"no advice: {driver.log(30)}"
    found = _rows(patient)
    return "" if found == wanted else f"lost {(wanted - found).total()}, too many {(found - wanted).total()}"


def _rows(patient: Patient) -> Figures:
    rows = pa.table(
        DeltaTable(str(patient.folder / "table")).scan(columns=["k", "count", "total"]).read_all()
    ).to_pylist()
    return Counter((row["k"], row["count"], row["total"]) for row in rows)
