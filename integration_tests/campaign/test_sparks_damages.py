"""The campaign of damaged state files finds a store that does not check their bytes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from integration_tests.campaign.sparks_damages import PROGRAMS, WAYS, Patient, damage, judged
from integration_tests.programs.histories import History, session_set
from integration_tests.spark import plain_session
from spark_ckpt.store.location import Location

pytestmark = [pytest.mark.spark, pytest.mark.long]  # tests/store/test_sparks_state_files.py has every kind of damage


def test_each_damage_is_reported_and_a_store_that_reads_no_bytes_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lent = plain_session()
    spark, seed, store = next(lent), 1, "HDFS-backed"
    with session_set(spark, History.drawn(seed, PROGRAMS, store, "append").settings()):
        patient = Patient.made(spark, tmp_path, seed, store)
    lent.close()
    name = max(patient.epochs, key=lambda path: (patient.site.store / "spark" / path).stat().st_size)
    for way in WAYS:
        damage(patient.site.store / "spark", name, way, random.Random(seed))
        assert judged(patient.site.store, tmp_path / "laid", name, patient.epochs) == "", way
        patient.heal()
    damage(patient.site.store / "spark", name, "one bit flipped", random.Random(seed))
    monkeypatch.setattr(Location, "verify", lambda self, file, **where: None)
    assert judged(patient.site.store, tmp_path / "laid", name, patient.epochs)
