"""An incarnation's query copies settings from its session."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace

import pytest
from incarnation_kit import WAIT_S, eventually
from run_kit import JOB, Bench

from spark_ckpt.driver.query.stage_query import make_folders, query_settings
from spark_ckpt.spark_internals.settings import frame_limits
from spark_ckpt.store.location import Location
from spark_ckpt.store.store import Store

FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


@pytest.mark.parametrize("uri", ["/data/orders/runs/3", "file:///data/orders/runs/3"])
def test_a_local_checkpoint_is_written_without_a_process_per_file_operation(uri: str) -> None:
    assert query_settings(uri, 2)[FILE_MANAGER].endswith(".FileSystemBasedCheckpointFileManager")


@pytest.mark.parametrize("uri", ["s3a://bucket/orders/runs/3", "hdfs://name/orders/runs/3"])
def test_elsewhere_spark_chooses_how_checkpoint_files_are_written(uri: str) -> None:
    assert FILE_MANAGER not in query_settings(uri, 2)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_the_folders_of_a_local_checkpoint_are_there_before_spark_starts_a_process_for_each(scheme, tmp_path) -> None:
    make_folders(f"{scheme}{tmp_path}/runs/3")
    made = {path.name for path in (tmp_path / "runs/3").rglob("*")}
    assert made == {"offsets", "commits", "state"}


def test_a_local_checkpoint_begins_without_what_an_incarnation_of_the_same_number_has_left(tmp_path) -> None:
    """After a restore of the store from a backup. Spark would continue from these offsets."""
    left = tmp_path / "runs/3/offsets/7"
    left.parent.mkdir(parents=True)
    left.write_text("v1")
    make_folders(str(tmp_path / "runs/3"))
    assert [path.name for path in (tmp_path / "runs/3").rglob("*") if path.is_file()] == []


def test_checkpoints_of_ended_incarnations_are_removed_also_outside_of_the_store(tmp_path, monkeypatch) -> None:
    """A takeover does not wait for it: they may have many files."""
    for number in ("2", "9", "10", "12", "other"):
        (tmp_path / number / "stage").mkdir(parents=True)
    rmtree, has_begun = shutil.rmtree, threading.Event()
    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: has_begun.wait(WAIT_S) and rmtree(path))
    make_folders(str(tmp_path / "11/stage"))
    assert (tmp_path / "2").exists()
    has_begun.set()
    eventually(lambda: {path.name for path in tmp_path.iterdir()} == {"10", "11", "12", "other"}, "removal")


def test_elsewhere_a_checkpoint_begins_empty_too_and_no_folder_is_made(tmp_path, monkeypatch) -> None:
    """Such as `run_dir` on HDFS: after a restore of the store from a backup Spark would continue from these offsets."""
    monkeypatch.chdir(tmp_path)
    checkpoint = Location("memory:///runs/3/stage")
    checkpoint.write_bytes("offsets/7", b"v1")
    make_folders(checkpoint.uri)
    assert (checkpoint.list(), list(tmp_path.iterdir())) == ([], [])


def test_jobs_and_stages_with_one_run_dir_have_checkpoints_of_their_own(tmp_path, monkeypatch) -> None:
    plan = Bench(tmp_path, monkeypatch).plan(run_dir=str(tmp_path / "runs"))
    other = replace(plan, store=Store.open(str(tmp_path / "other"), JOB))
    assert plan.checkpoint(1) != other.checkpoint(1)


def test_the_number_of_partitions_is_the_incarnations() -> None:
    assert query_settings("/data", 7)["spark.sql.shuffle.partitions"] == "7"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.sql.execution.arrow.useLargeVarTypes", "false"),
        ("spark.sql.execution.arrow.maxRecordsPerOutputBatch", "-1"),
        ("spark.sql.streaming.stateStore.checkpointFormatVersion", "1"),
        ("spark.sql.streaming.offsetLog.formatVersion", "1"),
        ("spark.sql.streaming.noDataMicroBatches.enabled", "true"),
    ],
)
def test_the_session_cannot_change_settings_that_tasks_and_the_driver_rely_on(key: str, value: str) -> None:
    assert query_settings("/data", 2)[key] == value


class Conf:
    """The conf of a session with these settings."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.settings = settings

    @property
    def conf(self) -> Conf:
        return self

    def get(self, key: str, default: str | None) -> str | None:
        return self.settings.get(key, default)


def test_a_function_of_sparks_operators_gets_frames_of_the_sessions_size() -> None:
    records, size = (f"spark.sql.execution.arrow.max{each}PerBatch" for each in ("Records", "Bytes"))
    assert frame_limits(Conf({records: "2", "spark.sql.ansi.enabled": "true"})) == {records: "2"}
    assert frame_limits(Conf({records: "-1", size: "100"})) == {records: "-1", size: "100"}
    assert frame_limits(Conf({})) == {}  # the job's own bounds stay


def test_spark_keeps_the_state_of_a_query_where_a_python_operator_finds_it() -> None:
    provider = query_settings("/data", 2)["spark.sql.streaming.stateStore.providerClass"]
    assert provider.endswith(".HDFSBackedStateStoreProvider")
