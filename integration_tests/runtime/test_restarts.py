"""Runs under the user's control: live control, restores, and refusals at definition and at restart, with their reasons."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from runtime_kit import ENOUGH_S, Bench, Heard, add_up, drain, latest, manifest_of, totals
from typer.testing import CliRunner

import spark_ckpt as ckpt
from spark_ckpt.cli.app import application, exit_code
from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.store.store import Store

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import from the tests' folder


def totals_job(bench: Bench, **settings: object) -> ckpt.Job:
    job = bench.job(**settings)
    totals(job.source("in", bench.source())).to(bench.sink(), name="out")
    return job


def test_a_run_reports_its_events_and_obeys_its_controls(bench: Bench) -> None:
    bench.put(("a", 1))
    heard, job = Heard(), bench.job()
    totals(job.source("in", bench.files_source())).to(bench.sink(), name="out")
    job.addListener(heard)
    run = job.start()
    assert run.isActive
    assert run.awaitTermination(0.01) is False
    assert run.exception() is None
    named = run.savepoint("named", ENOUGH_S)
    bench.put(("a", 10), ("b", 5))
    assert run.savepoint("later", ENOUGH_S) > named
    files = {path.suffix for path in (bench.folder / "store" / "runs").rglob("*") if path.is_file()}
    assert ".delta" in files
    assert ".crc" not in files, "each would start a process"
    with pytest.raises(ckpt.CkptError, match="already"):
        run.savepoint("named")
    assert run.stop(ENOUGH_S)
    assert not run.isActive

    assert [brief.reason for brief in run.epochs()] == ["initial", "interval", "savepoint", "savepoint", "stop"]
    assert heard.of("started")[0].reason == "latest"
    committed = [event.epoch for event in heard.of("committed")]
    assert committed == [brief.epoch for brief in run.epochs()]
    assert [event.epoch for event in heard.of("published")] == committed[1:]
    assert {event.detail["sink"] for event in heard.of("published")} == {"out"}
    assert [event.reason for event in heard.of("ended")] == ["stopped"]
    last, recent = run.lastProgress, run.recentProgress
    assert last == recent[-1] | {"outage": None, "epochPartsMs": last["epochPartsMs"]}
    assert set(last["epochPartsMs"]) == {"barrier", "snapshot", "decision"}
    assert [each["batchId"] for each in recent] == sorted(each["batchId"] for each in recent)
    assert last["totals"] == {"numInputRows": 3, "numOutputRows": 3, "rejected": 0, "late": 0}
    assert last["sources"]["in"]["count"] == 2
    assert latest(bench.values()) == {"a": 11, "b": 5}


@pytest.mark.long  # in the gate: integration_tests/survival/test_restore.py
def test_a_job_restores_an_epoch_and_a_savepoint(bench: Bench) -> None:
    """The state and the source are restored; the sink keeps its rows, and the rows come again under new epochs."""
    bench.put(("a", 1))
    run = totals_job(bench).start()
    first = run.savepoint("first", ENOUGH_S)
    bench.put(("a", 10))
    second = run.savepoint("second", ENOUGH_S)
    run.stop(ENOUGH_S)
    assert bench.values() == [("a", 1), ("a", 11)]

    bench.put(("a", 100))
    run = drain(totals_job(bench), restore=second)
    assert bench.values() == [("a", 1), ("a", 11), ("a", 111)]
    run = drain(totals_job(bench), restore="first")
    assert bench.values() == sorted([("a", 1), ("a", 11), ("a", 111), ("a", 11), ("a", 111)], key=repr)
    epochs = {brief.epoch: brief for brief in run.epochs()}
    assert min(epoch for epoch in epochs if epochs[epoch].base == first and epoch > second) > second
    with pytest.raises(ckpt.CkptError) as unknown:
        totals_job(bench).start(restore="never-taken")
    assert (unknown.value.condition, "first" in str(unknown.value)) == ("CKPT_EPOCH_NOT_FOUND", True)


@pytest.fixture(scope="module")
def decided(spark: SparkSession, tmp_path_factory) -> Bench:
    """A store with one epoch of the totals job; tests only try to start other jobs on it."""
    bench = Bench(spark, tmp_path_factory.mktemp("decided"))
    bench.put(("a", 1))
    drain(totals_job(bench))
    return bench


def keeping(notes: tuple[None, ...]):
    def keep_all(key, frames, state):
        total, seen = state.get[:2] if state.exists else (0, [])
        for frame in frames:
            seen = [*seen, *(int(value) for value in frame["v"])]
            total += int(frame["v"].sum())
        state.update((total, seen, *notes))
        yield key[0], total

    return keep_all


def summed(bench: Bench, state: str) -> ckpt.Job:
    job = bench.job()
    stream = job.source("in", bench.source())
    function = keeping((None,) if "note" in state else ())
    sums = stream.groupBy("k").applyInPandasWithState(
        function, "k string, n long", state, "append", "NoTimeout", "sums"
    )
    sums.to(bench.sink(), name="out")
    return job


def newest_epoch(bench: Bench) -> int:
    return Store.open(str(bench.folder / "store"), "job").log.state().latest


def in_the_table(store: str, version: int | None = None) -> tuple[dict[str, int], str]:
    """Rows that SQL finds in the operator's table, and the type of `n` there."""
    table = DeltaTable(f"{store}/state/sums", version=version)
    found = QueryBuilder().register("t", table).execute("SELECT k, n FROM t WHERE ckpt_op = 'put'").read_all()
    types = {field.name: field.type.type for field in table.schema().fields}
    return {row["k"]: row["n"] for row in pa.table(found).to_pylist()}, types["n"]


def total_as_double(job: ckpt.Job, bench: Bench):
    stream = job.source("in", bench.source())
    return stream.groupBy("k").applyInPandasWithState(
        add_up, "k string, total long", "total double", "append", "NoTimeout", "totals"
    )


@pytest.mark.long  # in the gate: tests/store/test_state_schemas_widen.py
def test_a_state_widens_under_its_job_and_every_reader_sees_the_wider_type(bench: Bench) -> None:
    """Keys that no batch writes since then widen, too: the first epoch under the new schema writes the whole state."""
    bench.put(("a", 1), ("b", 2))
    drain(summed(bench, "n int, seen array<int>"))
    before = ckpt.read_state(str(bench.folder / "store"), "sums")
    narrow, first = ckpt.state_version(str(bench.folder / "store"), "sums"), newest_epoch(bench)
    bench.put(("a", 2**40))
    drain(summed(bench, "n bigint, seen array<bigint>, note string"))
    assert latest(bench.values()) == {"a": 2**40 + 1, "b": 2}

    store = str(bench.folder / "store")
    after = ckpt.read_state(store, "sums")
    assert (before.schema.field("n").type, after.schema.field("n").type) == (pa.int32(), pa.int64())
    wide = {"a": (2**40 + 1, [1, 2**40]), "b": (2, [2])}
    assert {row["k"]: (row["n"], row["seen"]) for row in after.to_pylist()} == wide
    assert {row.k: (row.n, row.seen) for row in ckpt.state_frame(bench.spark, store, "sums").collect()} == wide
    assert in_the_table(store) == ({"a": 2**40 + 1, "b": 2}, "long")
    assert in_the_table(store, version=narrow) == ({"a": 1, "b": 2}, "integer")
    found = CliRunner().invoke(application(), ["diff", store, "sums", str(first), str(newest_epoch(bench)), "--json"])
    assert [each["key"] for each in json.loads(found.stdout)["changes"]] == [{"k": "a"}]
    assert CliRunner().invoke(application(), ["verify", store, "--deep"]).exit_code == 0

    with pytest.raises(ckpt.CkptError) as refused:
        summed(bench, "n int, seen array<int>, note string").start()
    said = "state column n was bigint, is int, which does not hold every bigint"
    assert refused.value.context["difference"].startswith(said)


def keyed_by_more(job: ckpt.Job, bench: Bench):
    stream = job.source("in", bench.source())
    return stream.groupBy("k", "v").applyInPandasWithState(
        add_up, "k string, total long", "total long", "append", "NoTimeout", "totals"
    )


OTHER_GRAPHS = {
    "state schema": (total_as_double, "CKPT_STATE_SCHEMA_CHANGED", "difference: state column total was bigint, is double"),
    "key schema": (keyed_by_more, "CKPT_STATE_SCHEMA_CHANGED", "difference: key column v is new"),
    "operator renamed": (lambda job, bench: totals(job.source("in", bench.source()), "sums"), "CKPT_GRAPH_INVALID", "totals"),
    "operator dropped": (lambda job, bench: job.source("in", bench.source()), "CKPT_GRAPH_INVALID", "totals"),
    "source renamed": (lambda job, bench: totals(job.source("input", bench.source())), "CKPT_GRAPH_INVALID", "in"),
}  # fmt: skip


@pytest.mark.parametrize("change", OTHER_GRAPHS)
def test_a_restart_with_another_graph_is_refused_and_changes_nothing(decided: Bench, change: str) -> None:
    graph, condition, said = OTHER_GRAPHS[change]
    job = decided.job()
    table = f"other-{change.replace(' ', '-')}"
    graph(job, decided).to(decided.sink(table), name="out")
    with pytest.raises(ckpt.CkptError, match=said) as refused:
        job.start()
    assert refused.value.condition == condition
    assert refused.value.hint
    assert not (decided.folder / table).exists()


def test_key_groups_of_an_operator_cannot_change(decided: Bench) -> None:
    with pytest.raises(ckpt.CkptError, match="has 4 key groups") as refused:
        totals_job(decided, key_groups=8).start()
    assert refused.value.condition == "CKPT_CONFIG_INVALID"


def test_another_jobs_store_is_refused(decided: Bench) -> None:
    job = ckpt.Job(decided.spark, "another", str(decided.folder / "store"))
    totals(job.source("in", decided.source())).to(decided.sink(), name="out")
    with pytest.raises(ckpt.CkptError) as refused:
        job.start()
    assert refused.value.condition == "CKPT_STORE_FOREIGN"


def test_arguments_override_settings_of_the_sessions_conf(bench: Bench) -> None:
    conf = bench.spark.conf
    try:
        conf.set("spark.ckpt.interval", "3 seconds")
        conf.set("spark.ckpt.key.groups", "5")
        job = ckpt.Job(bench.spark, "job", str(bench.folder / "store"), key_groups=6)
        assert (job.config.interval_ms, job.config.key_groups) == (3000, 6)
        conf.set("spark.ckpt.intervall", "3 seconds")
        with pytest.raises(ckpt.CkptError, match=r"spark\.ckpt\.intervall") as refused:
            ckpt.Job(bench.spark, "job", str(bench.folder / "store"))
        assert "did you mean 'interval'" in refused.value.hint
    finally:
        for key in ("spark.ckpt.interval", "spark.ckpt.key.groups", "spark.ckpt.intervall"):
            conf.unset(key)


# -- mistakes that are reported on their line -----------------------------------------------------------------------------


def two_names(job: ckpt.Job, rows: ckpt.Stream) -> object:
    totals(rows)
    return totals(rows)


def timeout_without_watermark(job: ckpt.Job, rows: ckpt.Stream) -> object:
    return rows.groupBy("k").applyInPandasWithState(add_up, "k string, t long", "t long", "append", "EventTimeTimeout")


MISTAKES = {
    "filter": (lambda job, rows: rows.filter("nope > 1"), "nope"),
    "select": (lambda job, rows: rows.select("k", "nope"), "nope"),
    "column": (lambda job, rows: rows["nope"], "columns: k, v"),
    "group": (lambda job, rows: rows.groupBy("nope"), "nope"),
    "no key": (lambda job, rows: rows.groupBy(), "at least one key"),
    "operator names": (two_names, "two operators named 'totals'"),
    "stream-stream": (lambda job, rows: rows.join(rows, "k"), "both streams have a column 'v'"),
    "no frame": (lambda job, rows: rows.join([1], "k"), "static DataFrame or another Stream"),
    "no aggregate": (lambda job, rows: rows.groupBy("k").agg(), "at least one aggregate"),
    "aggregate": (lambda job, rows: rows.groupBy("k").agg(s=ckpt.sum("nope")), "nope"),
    "watermark": (lambda job, rows: rows.withWatermark("v", "1 second"), "timestamp column"),
    "no watermark": (timeout_without_watermark, "withWatermark"),
    "ddl": (lambda job, rows: rows.groupBy("k").applyInPandasWithState(add_up, "k strung,", "t long", "append", "NoTimeout"),
            "cannot be parsed"),
    "parse ddl": (lambda job, rows: rows.parse("k", "a b c"), "cannot be parsed"),
    "reserved": (lambda job, rows: rows.groupBy("k").applyInPandasWithState(
        add_up, "k string", "ckpt_x long", "append", "NoTimeout"), "ckpt_"),
    "source twice": (lambda job, rows: job.source("in", None), "two sources"),
    "onError": (lambda job, rows: rows.parse("k", "a int", on_error="ignore"), "'fail' or 'drop'"),
    "union shape": (lambda job, rows: rows.union(job.source("more", job.other).select("k")), "union"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_definition_is_reported_at_once_with_advice(decided: Bench, mistake: str) -> None:
    write, said = MISTAKES[mistake]
    job = decided.job()
    job.other = decided.source()
    with pytest.raises(ckpt.CkptError) as refused:
        write(job, job.source("in", decided.source()))
    assert said in str(refused.value)
    assert refused.value.exit_code == 2


def test_a_job_without_a_sink_does_not_start(decided: Bench) -> None:
    job = decided.job()
    job.source("in", decided.source())
    with pytest.raises(ckpt.CkptError, match="no sink"):
        job.start()


def test_two_sinks_need_two_names(decided: Bench) -> None:
    job = decided.job()
    rows = job.source("in", decided.source())
    rows.to(decided.sink("one"))
    with pytest.raises(ckpt.CkptError, match="two sinks named 'delta'"):
        rows.to(decided.sink("two"))


# -- failures while it runs ---------------------------------------------------------------------------------------------


def divides(key, frames, state):
    yield (key[0], sum(1 // int(value) for frame in frames for value in frame["v"]))


def test_a_users_mistake_ends_the_run_naming_operator_and_key(bench: Bench) -> None:
    bench.put(("a", 1), ("b", 0))
    job = bench.job()
    keyed = job.source("in", bench.source()).groupBy("k")
    keyed.applyInPandasWithState(divides, "k string, n long", "n long", "append", "NoTimeout").to(
        bench.sink(), name="out"
    )
    run = job.start(availableNow=True)
    with pytest.raises(ckpt.CkptError) as failed:
        run.awaitTermination(ENOUGH_S)
    assert failed.value.condition == "CKPT_USER_FUNCTION_FAILED"
    context = failed.value.context
    assert (context["operator"], context["key"]) == ("divides", "('b',)")
    assert "in divides" in str(context["traceback"])
    assert "ZeroDivisionError" in failed.value.what
    assert run.exception() is failed.value
    assert run.recentProgress == [] or bench.rows() == []


def fails_once(marker: str):
    """A function that fails once, as on a preempted machine."""

    def apply(frames):
        for frame in frames:
            if len(frame) and not Path(marker).exists():
                Path(marker).touch()
                raise ConnectionError("preempted")
            yield frame

    return apply


def test_a_transient_failure_loses_and_doubles_no_row(bench: Bench) -> None:
    bench.put(("a", 1))
    job = bench.job()
    rows = job.source("in", bench.source()).mapInPandas(fails_once(str(bench.folder / "failed")), bench.schema)
    totals(rows).to(bench.sink(), name="out")
    run = drain(job)
    assert run.incarnation == 2
    assert bench.values() == [("a", 1)]


PROGRAM = """
import sys
import spark_ckpt as ckpt
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

def main(folder):
    spark = ckpt.session("submitted", conf={"spark.ui.enabled": "false"})
    job = ckpt.Job(spark, "submitted", f"{folder}/store")
    rows = job.source("in", FilesSource(f"{folder}/in", "parquet", "k string, v long"))
    rows.groupBy("k").agg(total=ckpt.sum("v")).to(DeltaSink(f"{folder}/out"), name="out")
    run = job.start(availableNow=True)
    run.awaitTermination()
    print("interval", job.config.interval_ms, "epochs", len(run.epochs()))

if __name__ == "__main__":
    main(sys.argv[1])
"""


LEFT_RUNNING = PROGRAM.replace("start(availableNow=True)", "start()").replace(
    "run.awaitTermination()", "while run.lastProgress is None: run.awaitTermination(0.01)"
)


OF_A_WORKER = re.compile(r"""  File ".*\.zip/pyspark/[\w/]+\.py", line \d+, in \w+""")
OURS = re.compile(r"""  File ".*spark_ckpt\w*/[\w/]+\.py", line""")


def tracebacks_of_ours(said: str) -> list[str]:
    """All tracebacks except those of PySpark's own workers. Workers for Python sources wait for further requests. When the
    JVM closes their connection at its end, they may print a traceback, mixed with other lines, and the JVM may cut it off."""
    whole_lines = said[: said.rfind("\n") + 1]
    _, *tracebacks = whole_lines.split("Traceback (most recent call last):\n")
    return [each for each in tracebacks if each and (OURS.search(each) or not OF_A_WORKER.match(each))]


def test_a_traceback_of_sparks_workers_is_distinguished_from_others() -> None:
    head = "a warning\nTraceback (most recent call last):\n"
    daemon = f'{head}  File "a.zip/pyspark/daemon.py", line 95, in worker\nBrokenPipeError: [Errno 32] Broken pipe\n'
    ours = f'{head}  File "spark_ckpt/driver/run.py", line 9, in _end\nKeyError: 1\n'
    assert (
        tracebacks_of_ours(daemon + head) == tracebacks_of_ours(daemon[:-40]) == tracebacks_of_ours(daemon[:60]) == []
    )
    runner = daemon.replace("daemon.py", "sql/streaming/python_streaming_source_runner.py")
    assert tracebacks_of_ours(f"{runner}12:00:00 job a: incarnation 1 ended\n") == []
    worker, task = '  File "a.zip/pyspark/worker.py", line 9, in main', '  File "b/spark_ckpt/tasks/a.py", line 1, in b'
    operator = f"{head}{worker}\n{task}\nKeyError: 1\n"
    assert len(tracebacks_of_ours(daemon + ours + ours + operator)) == 3


def environment_of(bench: Bench) -> dict[str, str]:
    root = Path(ckpt.__file__).parents[1]
    return {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", str(bench.folder)),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": f"{root}:{root / 'connectors'}",
    } | {name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ}


@pytest.mark.long  # in the gate: tests/runtime/test_stop_signals.py
def test_a_program_that_ends_without_stopping_its_run_ends_properly_and_frees_the_lease(bench: Bench) -> None:
    """During the first epoch's commit, publish and settling."""
    bench.put(("a", 1), ("a", 2))
    program = bench.folder / "program.py"
    program.write_text(LEFT_RUNNING)
    done = subprocess.run(
        [sys.executable, str(program), str(bench.folder)],
        env=environment_of(bench), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert tracebacks_of_ours(done.stderr) == [], done.stderr[-3000:]
    assert Store.open(str(bench.folder / "store"), "submitted").log.state().lease_expires_ms == 0


@pytest.mark.long
def test_a_program_runs_under_spark_submit(bench: Bench) -> None:
    import pyspark

    bench.put(("a", 1), ("a", 2))
    program = bench.folder / "program.py"
    program.write_text(PROGRAM)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    done = subprocess.run(
        [str(submit), "--master", "local[1]", "--conf", "spark.ckpt.interval=7 minutes",
         "--conf", "spark.sql.shuffle.partitions=1", str(program), str(bench.folder)],
        env=environment_of(bench), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "interval 420000 epochs 2" in done.stdout
    assert bench.values() == [("a", 3)]


def test_an_operator_continues_with_another_number_of_key_groups(bench: Bench) -> None:
    rows = [(f"k{number % 13}", number) for number in range(60)]

    for number, key_groups in enumerate((4, 6)):
        bench.put(*rows[30 * number : 30 * number + 30])
        if number:
            with pytest.raises(ConfigInvalid, match=rf"spark-ckpt rescale .*store totals --key-groups {key_groups}"):
                totals_job(bench, key_groups=key_groups).start()
            assert exit_code(["rescale", str(bench.folder / "store"), "totals", "--key-groups", str(key_groups)]) == 0
        run = drain(totals_job(bench, key_groups=key_groups))

    wanted: dict[object, int] = {}
    for key, value in rows:
        wanted[key] = wanted.get(key, 0) + value
    assert latest([(row["k"], row["total"]) for row in bench.rows()]) == wanted
    assert manifest_of(bench, run.epochs()[-1].epoch)["operators"]["totals"]["key_groups"] == 6  # type: ignore[index]
