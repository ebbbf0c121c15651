"""Drawn programs of Spark's operators have equal output in a plain query and in a job that fails, restarts and restores.

`python -m integration_tests.campaign run programs` draws more of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from integration_tests.programs.histories import UNCOMMITTED, History, check, verdict
from integration_tests.programs.vocabulary import Program
from integration_tests.spark import plain_session
from spark_ckpt.epochs.records import SparkState
from spark_ckpt.store.spark_state import Known, Moment, SparkStates

pytestmark = pytest.mark.spark
KINDS = [
    ("HDFS-backed", "append", 4, 348),
    # RocksDB in the gate: integration_tests/runtime/test_state_of_sparks_operators.py; also more programs, the other mode
    pytest.param("HDFS-backed", "append", 6, 348, marks=pytest.mark.long),
    pytest.param("RocksDB, changelog", "append", 4, 21, marks=pytest.mark.long),
    pytest.param("HDFS-backed", "update", 6, 231, marks=pytest.mark.long),
    pytest.param("HDFS-backed", "append", 14, 209, marks=pytest.mark.long),
    pytest.param("HDFS-backed", "update", 12, 232, marks=pytest.mark.long),
]
"""State store, mode, number of programs and seed. A store of RocksDB costs several times as much. Each history fails once and is
restored."""


@pytest.fixture(scope="module")
def spark() -> Iterable[SparkSession]:
    yield from plain_session()


@pytest.mark.parametrize(("store", "mode", "programs", "seed"), KINDS)
def test_drawn_programs_have_the_output_of_plain_spark(
    spark: SparkSession, tmp_path: Path, store: str, mode: str, programs: int, seed: int
) -> None:
    check(spark, tmp_path, History.drawn(seed, programs, store, mode))


# -- planted bugs: the verdict finds each ------------------------------------------------------------------------------

Change = Callable[[Path, str, Moment], bytes]
"""Content that a broken capture reads instead of a file, by the file's path and its place in the state."""
REAL = SparkStates.keep


def keeping(change: Change) -> Callable[..., SparkState]:
    """A capture that reads other content."""

    def keep(self: SparkStates, state: Path, places: Iterable[str], moment: Moment, known: Known) -> SparkState:
        places = list(places)
        other = state.parent / f"planted-{moment.batch}"
        for place in places:
            (other / place).parent.mkdir(parents=True, exist_ok=True)
            (other / place).write_bytes(change(state / place, place, moment))
        return REAL(self, other, places, moment, Known())

    return keep


def of_version(by: int, wait_s: float = 0) -> Change:
    """Read the file of an earlier or a later version instead of the batch's own; for a later one, wait for it."""

    def change(path: Path, place: str, moment: Moment) -> bytes:
        version, until_s = moment.batch + 1, time.monotonic() + wait_s
        other = path.with_name(path.name.replace(f"{version}.", f"{version + by}.", 1))
        if not is_new(path, moment):
            return path.read_bytes()
        while not other.exists() and time.monotonic() < until_s:  # the coordinator waits, Spark does not
            time.sleep(0.05)
        return other.read_bytes() if other.exists() else path.read_bytes()

    return change


def is_new(path: Path, moment: Moment) -> bool:
    return path.name.startswith(f"{moment.batch + 1}.")


def half(path: Path, place: str, moment: Moment) -> bytes:
    content = path.read_bytes()
    return content[: len(content) // 2] if is_new(path, moment) else content


def of_the_first_incarnation() -> Change:
    known: dict[str, bytes] = {}
    return lambda path, place, moment: known.setdefault(place, path.read_bytes())


def planted_history(mode: str) -> History:
    """Four programs; the second round fails, and its batches are repeated with one more file."""
    histories = (History.drawn(seed, 4, "HDFS-backed", mode) for seed in count(7))
    drawn = next(each for each in histories if len(each.rounds[0]) + len(each.rounds[1]) > 2)
    files = [file for files in drawn.rounds[:-1] for file in files]
    rounds = ((files[0],), tuple(files[1:]), drawn.rounds[-1])
    return replace(drawn, rounds=rounds, points=("", UNCOMMITTED, ""), back=2, deltas=10, interval="1 hour")


BUGS: dict[str, tuple[str, Change]] = {
    "the state of the batch before": ("append", of_version(-1)),
    "a file that is not whole": ("append", half),
    "a file of another incarnation": ("append", of_the_first_incarnation()),
}


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(spark: SparkSession, tmp_path: Path, bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Long: tests/store/test_sparks_state_files.py finds the same bugs without Spark.
    mode, change = BUGS[bug]
    monkeypatch.setattr(SparkStates, "keep", keeping(change))
    assert verdict(spark, tmp_path, planted_history(mode))[1]


@pytest.mark.long
def test_the_state_of_the_batch_after_is_found(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Long: as above. Its history has epochs in the middle of a round, which later batches follow.
    history = planted_history("update")
    counted = Program("p0", "groupBy k", lambda frame: frame.groupBy("k").agg(F.count("*"), F.sum("v")))
    files = tuple(file for files in history.rounds for file in files)
    history = replace(
        history, programs=(counted,), rounds=(files,), points=("EPOCH_COMMITTED:raise:2",), back=None, interval="50 ms"
    )
    assert verdict(spark, tmp_path / "healthy", history)[1] == ""
    monkeypatch.setattr(SparkStates, "keep", keeping(of_version(1, wait_s=5)))
    assert verdict(spark, tmp_path / "planted", history)[1]
