"""Damage to files after the commit: one typed error at once, none of their rows is public, and recovery advice that works."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from runtime_kit import Bench, drain, manifest_of, totals
from spark_ckpt_delta import DeltaSink
from typer.testing import CliRunner

import spark_ckpt as ckpt
from spark_ckpt.cli.app import application
from spark_ckpt.connector import EpochOutput, Publisher, PublishReceipt, SinkContext
from spark_ckpt.epochs.records import StateFile
from spark_ckpt.errors import EpochDamaged

pytestmark = pytest.mark.spark


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "flipped": flip,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-9]) and None,
    "emptied": lambda path: path.write_bytes(b"") and None,
    "deleted": Path.unlink,
}
KINDS = ["flipped", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("deleted", "cut", "emptied"))]


class RottingPublisher:
    """Damages an epoch's first file before the real publisher reads it."""

    def __init__(self, real: Publisher, damage: Callable[[Path], None]) -> None:
        self.real = real
        self.damage = damage

    def publish(self, output: EpochOutput) -> PublishReceipt:
        for file in output.files[:1]:
            self.damage(Path(output.root) / file.path)
        return self.real.publish(output)

    def close(self) -> None:
        self.real.close()


class RottingSink(DeltaSink):
    """A sink whose files are damaged between the commit and the publish."""

    def __init__(self, table: Path, damage: Callable[[Path], None]) -> None:
        super().__init__(str(table))
        self.damage = damage

    def publisher(self, spark: SparkSession, context: SinkContext) -> Publisher:
        return RottingPublisher(super().publisher(spark, context), self.damage)


def totals_job(bench: Bench, sink: DeltaSink | None = None) -> ckpt.Job:
    job = bench.job()
    totals(job.source("in", bench.source())).to(sink or bench.sink(), name="out")
    return job


@pytest.mark.long  # in the gate: the state's files, below; rows in tests/delta/test_delta_damage.py and on Spark's engine
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_rows_of_a_committed_epoch_are_produced_again_from_the_sources(bench: Bench, kind: str) -> None:
    bench.put(("a", 1))
    drain(totals_job(bench))
    bench.put(("a", 10), ("b", 5))
    with pytest.raises(EpochDamaged) as caught:
        drain(totals_job(bench, RottingSink(bench.folder / "out", DAMAGES[kind])))
    error = caught.value
    assert {"epoch", "sink", "expected"} <= error.context.keys()
    assert bench.values() == [("a", 1)], "nothing of the epoch is public"

    with pytest.raises(EpochDamaged) as again:
        drain(totals_job(bench))
    assert str(again.value) == str(error), "without the advised action the next start raises the same error"
    assert bench.values() == [("a", 1)]

    back = re.search(r"job\.start\(restore=(\d+)\)", error.hint)
    assert back is not None
    store = str(bench.folder / "store")
    assert CliRunner().invoke(application(), ["verify", store, "--deep"]).exit_code == EpochDamaged.exit_code
    shown = CliRunner().invoke(application(), ["restore", store, back[1], "--dry-run"])
    assert (shown.exit_code, "not known to be published" in shown.output) == (0, True)
    drain(totals_job(bench), restore=int(back[1]))
    bench.put(("b", 50))
    drain(totals_job(bench))
    assert bench.values() == [("a", 1), ("a", 11), ("b", 5), ("b", 55)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_state_file_ends_a_recovery_and_an_older_epoch_begins_one(bench: Bench, kind: str) -> None:
    bench.put(("a", 1))
    drain(totals_job(bench))
    bench.put(("a", 10))
    run = drain(totals_job(bench))
    latest = run.epochs()[-1].epoch
    files = manifest_of(bench, latest)["operators"]["totals"]["files"]  # type: ignore[call-overload, index]
    newest = max(files, key=lambda file: file["epoch"])
    DAMAGES[kind](bench.folder / "store/state/totals" / newest["path"])

    bench.put(("a", 100))
    with pytest.raises(EpochDamaged) as caught:
        drain(totals_job(bench))
    assert newest["path"] in str(caught.value)
    if kind == "flipped":  # the others are known by their size, before any state is read
        assert caught.value.context["operator"] == "totals"
        digests = [f"sha256 {each.sha256}" for each in StateFile.model_validate(newest).ranges]
        assert caught.value.context["expected"] in digests
    assert bench.values() == [("a", 1), ("a", 11)]
    verified = CliRunner().invoke(application(), ["verify", str(bench.folder / "store"), "--deep"])
    whole = re.search(r"newest whole epoch: (\d+)", verified.output)
    assert whole is not None
    assert int(whole[1]) < newest["epoch"]
    drain(totals_job(bench), restore=whole[1])  # the number as text, as a command line passes it
    assert bench.values() == [("a", 1), ("a", 11), ("a", 11), ("a", 111)]
