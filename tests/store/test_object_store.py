"""The store's guarantees on object stores: the same code path, against an S3 server (moto, on loopback)."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable
from store_world import JOB, OPERATOR, SINK, World

from integration_tests.s3 import Requests, running_s3
from spark_ckpt.content import BLOCK_BYTES, Readable
from spark_ckpt.driver.query import stage_query
from spark_ckpt.epochs.records import Manifest, SparkState
from spark_ckpt.epochs.retention import Retention
from spark_ckpt.errors import EpochDamaged, Fenced, StoreForeign, StoreUnreachable
from spark_ckpt.store import delta_log, location
from spark_ckpt.store.copied_log import log_files
from spark_ckpt.store.epoch_log import EpochLog, wall_ms
from spark_ckpt.store.folders import folders
from spark_ckpt.store.location import Location
from spark_ckpt.store.log_table import FOLD_AFTER
from spark_ckpt.store.spark_state import Known, Moment, SparkStates
from spark_ckpt.store.store import Store
from spark_ckpt.store.trim import HORIZON_MS

pytest.importorskip("moto.server", reason="needs moto[server], part of the test extra")

OPTIONS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "not-for-anybodys-eyes",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
    "aws_conditional_put": "etag",
}


@pytest.fixture(scope="module")
def server_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's log, with a line per request."""
    return tmp_path_factory.mktemp("moto") / "log"


@pytest.fixture(scope="module")
def endpoint(server_log: Path) -> Iterator[str]:
    with running_s3(server_log) as options:
        yield options["AWS_ENDPOINT_URL"]


@pytest.fixture
def options(endpoint: str) -> dict[str, str]:
    return {**OPTIONS, "AWS_ENDPOINT_URL": endpoint}


@pytest.fixture
def uri() -> str:
    return f"s3://bucket/{uuid.uuid4().hex}/store"


def test_epochs_a_takeover_and_retention(uri: str, options: dict[str, str]) -> None:
    world = World(uri, options=options)
    world.begin()
    for number in range(1, 6):
        manifest = world.epoch({"a": number, f"k{number}": number}, full=number == 3, acked=number - 1)
    other = World(uri, options=options)
    other.expected, other.chains = world.expected, world.chains
    assert other.begin().manifest == manifest
    with pytest.raises(Fenced):
        world.epoch({"a": 99})
    newest = other.epoch({"b": 6}, acked=5)
    assert other.store.retain(Retention(keep_last=2, slack=0)).epochs == (1, 2, 3, 4)
    for brief in other.store.log.state().epochs:
        other.store.verify(other.store.log.manifest(brief.epoch), deep=True)
        assert other.state_at(brief.epoch) == other.expected[brief.epoch]
    table = DeltaTable(other.store.state(OPERATOR).location.uri, storage_options=options)
    assert table.version() == other.store.state(OPERATOR).version(newest.epoch)
    assert len(table.file_uris()) == len(newest.operators[OPERATOR].files)
    assert other.store.staged(SINK).read(newest.epoch).column("value").to_pylist() == [f"row of {newest.epoch}"]


def test_a_task_needs_one_request_per_file_and_an_epoch_of_the_driver_six(
    uri: str, options: dict[str, str], server_log: Path
) -> None:
    world = World(uri, options=options)
    world.begin()
    world.epoch({"a": 0}, full=True)
    world.store.retain(Retention())  # the first retention of an incarnation lists the files of ended ones
    requests = Requests(server_log)
    for number in range(1, 4):
        world.snapshot({"a": number})
        assert requests.since() == {"PUT": 1}, "the state file of a task"
        world.staged([f"row of {number}"])
        assert requests.since() == {"PUT": 1}, "the staged file of a task"
        manifest = world.manifest()
        requests.since()
        world.commit(manifest)
        assert requests.since() == {"PUT": 3}, "the row of the epoch log, its commit, its acknowledgement"
        world.store.materialize(manifest)
        # one table of state, one of staged rows, one of rows in flight
        assert requests.since() == {"PUT": 3}, "one commit of each table"
        world.store.retain(Retention())
        assert requests.since() == {}, "nothing to drop, by the driver's own rows"


@pytest.mark.parametrize(
    ("copies", "lists_from_a_name"),
    [
        pytest.param(True, True, id="a usual store"),
        pytest.param(True, False, id="a store that lists all names"),
        pytest.param(False, True, id="planted: commits of others are not copied"),
    ],
)
def test_a_commit_of_another_process_is_read_once_and_an_own_one_never(
    uri: str,
    options: dict[str, str],
    server_log: Path,
    monkeypatch: pytest.MonkeyPatch,
    copies: bool,
    lists_from_a_name: bool,
) -> None:
    if not lists_from_a_name:
        monkeypatch.setattr(location, "list_objects", lambda *_: None)
    world = World(uri, options=options)
    world.begin()
    world.epoch({"a": 1}, materialize=False)
    ours, theirs = world.store.log, world.store.reopened().log
    ours.add_savepoint("ours", 1)
    requests = Requests(server_log)
    assert set(ours.state().savepoints) == {"ours"}
    assert requests.since() == {"LIST": 1}, "the check for commits of other processes"
    theirs.add_savepoint("theirs", 1)
    requests.since()
    if not copies:
        monkeypatch.setattr(delta_log, "pull", lambda table: None)
    assert ("theirs" in ours.state().savepoints) == copies
    if copies:
        assert requests.since() == {"LIST": 1, "GET": 2, "HEAD": 1}, "the check, their commit, the file of their row"
        ours.state()
        assert requests.since() == {"LIST": 1}


def test_a_clock_that_is_a_day_ahead_deletes_no_commit_of_the_last_hour(uri: str, options: dict[str, str]) -> None:
    """A writer that slept for some seconds would take the number of a deleted commit for a free one."""
    world = World(uri, options=options)
    world.begin()
    while world.store.log.state().lease_token < FOLD_AFTER + 8:
        world.store.log.renew(world.line.incarnation, 30_000)
    epochs = world.store.location.child("epochs")
    before = log_files(epochs)
    assert any(kind != "json" for _, kind in before), "a checkpoint allows a deletion"
    world.store.log.trim(wall_ms() + 24 * HORIZON_MS)
    assert log_files(epochs).keys() >= before.keys()


def test_a_log_that_another_process_trimmed_is_copied_from_its_checkpoint(uri: str, options: dict[str, str]) -> None:
    world = World(uri, options=options)
    world.begin()
    world.epoch({"a": 1})
    reader, tables = world.store.reopened().log, [world.store.log, world.store.reopened().log]
    for number in range(4):
        tables[number % 2].add_savepoint(f"s{number}", 1)
    epochs = world.store.location.child("epochs")
    table = delta_log.open_table(epochs)
    assert table is not None
    delta_log.checkpoint(table, epochs)
    epochs.delete(path for (version, _), path in log_files(epochs).items() if version < table.version())
    assert set(reader.state().savepoints) == {f"s{number}" for number in range(4)}
    assert reader.state() == world.store.log.state()
    newest = DeltaTable(epochs.uri, storage_options=options)
    assert newest.version() == table.version(), "delta-rs opens it by the checkpoint, too"
    assert sorted(newest.file_uris()) == sorted(f"{epochs.uri}/{path}" for path in delta_log.live_files(table))


STATE_FILES = {"0/0/1.delta": b"changes of 1", "0/0/2.delta": b"changes of 2"}


def put_state(folder: Path, *places: str) -> None:
    for place in places:
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_bytes(STATE_FILES[place])


def kept_state(states: SparkStates, folder: Path, batch: int, known: Known) -> SparkState:
    places = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.delta"))
    return states.keep(folder, places, Moment(1, batch, "{}", "v1\n{}", "a provider", 1, 1, ("dedupe",)), known)


def test_a_file_of_sparks_state_is_uploaded_once_and_comes_back_verified(
    uri: str, options: dict[str, str], server_log: Path, tmp_path: Path
) -> None:
    states, known = SparkStates(Location(uri, options)), Known()
    put_state(tmp_path / "run", "0/0/1.delta")
    first = kept_state(states, tmp_path / "run", 0, known)
    put_state(tmp_path / "run", "0/0/2.delta")
    requests = Requests(server_log)
    second = kept_state(states, tmp_path / "run", 1, known)
    assert requests.since() == {"PUT": 2}, "the new file and the index"
    following = SparkStates(Location(uri, options))
    following.verify(second, deep=True)
    _, known = following.lay_out(second, tmp_path / "next", 2)
    assert {place: (tmp_path / "next" / place).read_bytes() for place in STATE_FILES} == STATE_FILES
    third = kept_state(following, tmp_path / "next", 2, known)
    assert following.index(third).files == following.index(second).files, "nothing was uploaded again"
    manifests = [Manifest(job="job", epoch=1, incarnation=1, attempt="a", created_ms=0, spark_state=first)]
    gone = following.sweep([], manifests, incarnation=1)
    assert {info.path for info in gone} >= {first.index, states.index(first).files[0].path}


@pytest.mark.parametrize("content", [None, b"changes of", b"changes of 9"], ids=["deleted", "cut", "changed"])
def test_a_damaged_file_of_sparks_state_never_reaches_spark(
    uri: str, options: dict[str, str], tmp_path: Path, content: bytes | None
) -> None:
    files = Location(uri, options)
    states = SparkStates(files)
    put_state(tmp_path / "run", "0/0/1.delta")
    record = kept_state(states, tmp_path / "run", 0, Known())
    path = states.index(record).files[0].path
    files.delete([path])
    if content is not None:
        files.write_bytes(path, content)
    with pytest.raises(EpochDamaged) as start:
        states.lay_out(record, tmp_path / "next", 1)
    with pytest.raises(EpochDamaged) as deep:
        states.verify(record, deep=True, epoch=1)
    assert (start.value.context["file"], deep.value.context["file"]) == (path, path)
    assert [each for each in (tmp_path / "next").rglob("*") if each.is_file()] == []


def unverified(file: object, stream: Readable, **where: object) -> None:
    while stream.read(BLOCK_BYTES):
        pass


def test_a_planted_download_without_verification_is_found(
    uri: str, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(location, "check", unverified)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_a_damaged_file_of_sparks_state_never_reaches_spark(uri, options, tmp_path, b"changes of 9")


def test_a_planted_second_upload_of_files_is_found(
    uri: str, options: dict[str, str], server_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Known, "of", lambda self, place, found: None)
    with pytest.raises(AssertionError, match="the new file and the index"):
        test_a_file_of_sparks_state_is_uploaded_once_and_comes_back_verified(uri, options, server_log, tmp_path)


def _append(uri: str, options: dict[str, str], name: str, count: int) -> None:
    log = EpochLog.open(Location(uri, options), JOB)
    assert log is not None
    for number in range(count):
        log.add_savepoint(f"{name}-{number}", 1)


def test_compare_and_swap_by_conditional_put(uri: str, options: dict[str, str]) -> None:
    world = World(uri, options=options)
    world.begin()
    world.epoch({"a": 1}, materialize=False)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append, args=(f"{uri}/epochs", options, name, 6)) for name in "pq"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
        assert writer.exitcode == 0
    assert set(world.store.log.state().savepoints) == {f"{name}-{number}" for name in "pq" for number in range(6)}


def test_a_damaged_object_is_found(uri: str, options: dict[str, str]) -> None:
    world = World(uri, options=options)
    world.begin()
    world.epoch({"a": 1})
    manifest = world.epoch({"a": 2})
    path = manifest.operators[OPERATOR].files[-1].path
    world.store.state(OPERATOR).location.delete([path])
    with pytest.raises(EpochDamaged, match="missing"):
        world.store.verify(manifest)
    assert world.begin(1).manifest.epoch == 1


def test_an_output_that_is_dropped_never_appears(uri: str, options: dict[str, str]) -> None:
    location = Location(uri, options)
    output = location.open_output("a/b.bin")
    output.write(b"x" * 100)
    output.abort()
    assert location.list() == []
    assert location.size("a/b.bin") is None
    location.write_bytes("a/b.bin", b"y")
    assert location.read_bytes("a/b.bin") == b"y"
    assert (location.size("a/b.bin"), folders(location), location.sizes(["a/b.bin", "c"])) == (
        1,
        ["a"],
        {"a/b.bin": 1},
    )


def test_a_start_removes_the_checkpoints_of_ended_incarnations(
    uri: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as `run_dir` on HDFS."""
    monkeypatch.setattr(stage_query, "Location", partial(Location, storage_options=options))
    for number in (2, 10, 11):
        Location(f"{uri}/{number}/stage", options).write_bytes("offsets/7", b"v1")
    stage_query.make_folders(f"{uri}/11/stage")
    for thread in threading.enumerate():
        if thread.name == "ckpt-old-checkpoints":
            thread.join()
    assert [info.path for info in Location(uri, options).list()] == ["10/stage/offsets/7"]


def test_a_location_travels_to_executors_without_showing_secrets(uri: str, options: dict[str, str]) -> None:
    location = Location(uri, options)
    location.write_bytes("x", b"1")
    assert pickle.loads(pickle.dumps(location)).read_bytes("x") == b"1"
    assert "not-for-anybodys-eyes" not in repr(location)


def test_other_content_under_the_prefix_is_foreign(uri: str, options: dict[str, str]) -> None:
    Location(uri, options).write_bytes("precious.txt", b"mine")
    with pytest.raises(StoreForeign):
        Store.open(uri, JOB, options)


def test_a_server_that_is_not_there_is_unreachable(uri: str, options: dict[str, str]) -> None:
    down = {**options, "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "max_retries": "0", "retry_timeout": "1s"}
    with pytest.raises(StoreUnreachable) as caught:
        Store.open(uri, JOB, down)
    assert "not-for-anybodys-eyes" not in str(caught.value)
    assert caught.value.retriable
