"""Damage to the state files of Spark's operators: every use of a damaged file ends in an error that names epoch and file.

Most trials run without Spark: `verify --deep`, and the first step of a start, which copies the files to a new checkpoint.
One in twenty starts the job.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

import spark_ckpt as ckpt
from integration_tests.campaign.damages import HOW
from integration_tests.campaign.trial import Results
from integration_tests.programs.histories import History, JobSite, session_set
from integration_tests.spark import plain_session
from spark_ckpt.cli.app import exit_code
from spark_ckpt.errors import EpochDamaged
from spark_ckpt.store.existing import existing_store

STORES = ("HDFS-backed", "RocksDB, changelog")
PROGRAMS, STARTS = 4, 20
SWAPPED = "another file of the state in its place"
WAYS = (*(how for how in sorted(HOW) if how != "last line dropped"), SWAPPED)


@dataclass(frozen=True)
class Patient:
    """A store with epochs, the epochs by the files of their state, and a copy of its intact files."""

    site: JobSite
    epochs: dict[str, list[int]]
    whole: Path

    @classmethod
    def made(cls, spark: SparkSession, folder: Path, seed: int, store: str) -> Patient:
        """Run a drawn history as a job in `folder`."""
        site = JobSite(spark, folder / "job", History.drawn(seed, PROGRAMS, store, "append"))
        for files in site.history.rounds:
            site.tape.put(files, site.position())
            site.run()
        shutil.copytree(site.store / "spark", folder / "whole")
        return cls(site, dict(files_of(site.store)), folder / "whole")

    def heal(self) -> None:
        """Restore the files from the copy."""
        shutil.rmtree(self.site.store / "spark")
        shutil.copytree(self.whole, self.site.store / "spark")


def files_of(store: Path) -> Iterator[tuple[str, list[int]]]:
    """Yield every state file of Spark's operators, and the epochs that need it."""
    opened, found = existing_store(str(store)), dict[str, list[int]]()
    for manifest in opened.log.manifests():
        if manifest.spark_state is not None:
            index = opened.spark_states.index(manifest.spark_state)
            for path in (manifest.spark_state.index, *(file.path for file in index.files)):
                found.setdefault(path, []).append(manifest.epoch)
    yield from found.items()


def sparks_damages(folder: Path, trials: int, seed: int, results: Results) -> None:
    """Damage files `trials` times, half of them on each state store."""
    draw, lent = random.Random(seed), plain_session()
    spark = next(lent)
    for number, store in enumerate(STORES):
        place = folder / str(number)
        history = History.drawn(seed, PROGRAMS, store, "append")
        with session_set(spark, history.settings()):
            patient = Patient.made(spark, place, seed, store)
            for trial in range(trials // 2 + (trials % 2 if number else 0)):
                _one(patient, draw, store, results, starts=trial % STARTS == 0)
    lent.close()


def _one(patient: Patient, draw: random.Random, store: str, results: Results, starts: bool) -> None:
    name, way = draw.choice(sorted(patient.epochs)), draw.choice(WAYS)
    what = "index" if name.endswith("index.json") else "file"
    damage(patient.site.store / "spark", name, way, draw)
    try:
        why = judged(patient.site.store, patient.whole.parent / "laid", name, patient.epochs)
        if starts and not why:
            why = _started(patient, name)
    finally:
        patient.heal()
    broken = {"different": int(bool(why))}
    results.add(f"{store}, {what}, {way}{', started' if starts else ''}", broken, f"{name}: {why}" if why else "")


def damage(folder: Path, name: str, way: str, draw: random.Random) -> None:
    """Damage a file so that its content changes."""
    path = folder / name
    before = path.read_bytes()
    if way == SWAPPED:
        others = [each for each in sorted(folder.iterdir()) if each.read_bytes() != before]
        path.write_bytes(draw.choice(others).read_bytes())
    else:
        HOW[way](path, draw)
    if path.exists() and path.read_bytes() == before:  # an empty file cannot be cut
        path.write_bytes(before + b"x")


def judged(store: Path, scratch: Path, name: str, epochs: dict[str, list[int]]) -> str:
    """Return the fault of an answer: every epoch of the file must be refused by its name, and no other epoch."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = exit_code(["verify", str(store), "--deep", "--json"])
    found = {each["epoch"]: each["damage"] for each in json.loads(out.getvalue())["epochs"]}
    named = [epoch for epoch, damage in found.items() if damage and name in damage]
    if code != EpochDamaged.exit_code or named != epochs[name] or len(named) < sum(map(bool, found.values())):
        return f"verify --deep: code {code}, {found}"
    return "".join(_laid_out(store, scratch, name, epoch, epoch in epochs[name]) for epoch in found)


def _laid_out(store: Path, scratch: Path, name: str, epoch: int, is_damaged: bool) -> str:
    opened = existing_store(str(store))
    record = opened.log.manifest(epoch).spark_state
    if record is None:  # the start positions
        return ""
    try:
        opened.spark_states.lay_out(record, scratch, epoch)
    except EpochDamaged as error:
        named = (error.context.get("epoch"), error.context.get("file")) == (epoch, name)
        return "" if is_damaged and named else f"epoch {epoch} is refused with {error}"
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return f"epoch {epoch} is laid out" if is_damaged else ""


def _started(patient: Patient, name: str) -> str:
    """Start the job at the newest epoch that needs the file: the error names both, and the table gets no row."""
    epoch, before = patient.epochs[name][-1], patient.site.rows()
    asked = "latest" if epoch == patient.site.latest() else epoch
    try:
        patient.site.run(restore=asked)
    except ckpt.CkptError as error:
        text = str(error)
        if error.condition != "CKPT_EPOCH_DAMAGED" or name not in text:
            return f"the start from epoch {epoch} ended with {text}"
        return "" if patient.site.rows() == before else "the refused start changed the table"
    return f"the start from epoch {epoch} was not refused"
