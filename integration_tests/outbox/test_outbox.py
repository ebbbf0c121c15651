"""A plain query with an outbox: every row once in every sink, and every foreign checkpoint refused by name."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import urllib.request
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from deltalake import DeltaTable
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import Observation, SparkSession, functions
from spark_ckpt_delta import DeltaSink

from integration_tests.outbox.outbox_query import BEGIN_S, FILES, PER_FILE, Place, expected, run, windows, write_files
from spark_ckpt.cli.app import exit_code
from spark_ckpt.connector import EpochOutput, Publisher, PublishReceipt, SinkContext
from spark_ckpt.errors import (
    BatchUnexpected,
    CkptError,
    ConfigInvalid,
    IdentityChanged,
    PublishConflict,
    QueryForeign,
    SinkInvalid,
    StoreForeign,
)
from spark_ckpt.events.listener import EpochEvent, RunListener
from spark_ckpt.observability.metrics.prometheus import endpoints
from spark_ckpt.outbox.outbox import Outbox
from spark_ckpt.outbox.staging import FrameBatch
from spark_ckpt.store.store import Store
from tests.conformance.memory_sink import MemorySink, Target

pytestmark = pytest.mark.spark


class Heard(RunListener):
    """Records the committed epochs."""

    def __init__(self) -> None:
        self.committed: list[int] = []

    def onEpochCommitted(self, event: EpochEvent) -> None:
        self.committed.append(event.epoch)


class FailingSink(DeltaSink):
    """Fails once: before the epoch's commit in the table, or right after it, before its answer arrives."""

    def __init__(self, table: str, epoch: int, after: bool = False) -> None:
        super().__init__(table)
        self._at, self._after = epoch, after

    def publisher(self, spark: SparkSession, context: SinkContext) -> Publisher:
        return _Failing(super().publisher(spark, context), self._at, self._after)


class _Failing:
    def __init__(self, real: Publisher, epoch: int, after: bool) -> None:
        self._real, self._epoch, self._after = real, epoch, after

    def publish(self, output: EpochOutput) -> PublishReceipt:
        if output.epoch != self._epoch:
            return self._real.publish(output)
        if self._after:
            self._real.publish(output)
        raise SinkInvalid("planted")

    def close(self) -> None:
        self._real.close()


def both(place: Place) -> Mapping[str, Counter[tuple[int, str, int, int]]]:
    return {name: place.rows(name) for name in ("gold", "silver")}


# in the gate, after it: tests/outbox/test_rule.py
@pytest.mark.parametrize(
    "after", [False, pytest.param(True, marks=pytest.mark.long)], ids=["before the table's commit", "after it"]
)
def test_a_sink_that_fails_does_not_double_the_rows_of_the_others(
    spark: SparkSession, place: Place, after: bool
) -> None:
    failing = {"silver": FailingSink(place.table("silver"), 3, after), "gold": DeltaSink(place.table("gold"))}
    outbox = place.outbox(failing)
    assert run(outbox, windows(spark, place.inbox)) is not None
    assert isinstance(outbox.exception(), SinkInvalid)
    whole = {name: DeltaSink(place.table(name)) for name in ("gold", "silver")}
    assert run(place.outbox(whole), windows(spark, place.inbox)) is None
    assert both(place) == {"gold": expected(FILES), "silver": expected(FILES)}


def test_each_sink_gets_its_rows_and_columns(spark: SparkSession, place: Place) -> None:
    sinks = {
        "gold": DeltaSink(place.table("gold")),
        "big": DeltaSink(place.table("big")).rows("k", where="n > 2", **{"twice the `n`": "n * 2"}),
        "text": DeltaSink(place.table("text")).rows(value="to_json(struct(*))"),
    }
    assert run(place.outbox(sinks), windows(spark, place.inbox)) is None
    big = DeltaTable(place.table("big")).to_pyarrow_table().to_pylist()
    wanted = [(k, 2 * n) for (_, k, n, _), times in expected(FILES).items() if n > 2 for _ in range(times)]
    assert sorted((row["k"], row["twice the `n`"]) for row in big) == sorted(wanted)
    assert DeltaTable(place.table("text")).to_pyarrow_table().num_rows == expected(FILES).total()


@pytest.mark.long  # in the gate: tests/outbox/test_rule.py
def test_a_rewound_query_begins_a_branch_and_names_the_repeated_rows(
    spark: SparkSession, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    sinks = {"gold": DeltaSink(place.table("gold"))}
    assert run(place.outbox(sinks), windows(spark, place.inbox)) is None
    place.rewind(2)
    with caplog.at_level(logging.WARNING, "spark_ckpt"):
        assert run(place.outbox(sinks), windows(spark, place.inbox)) is None
    log = Store.open(place.store, "orders", kind="outbox").log
    left = [brief for brief in log.state().epochs if brief.incarnation == 1 and brief.spark_batch.number > 2]
    warned = [record.getMessage() for record in caplog.records if "abandoned" in record.getMessage()]
    assert [
        f"batch {each.spark_batch.number} (epoch {each.epoch})" in line
        for each, line in zip([brief for brief in left if brief.rows_out], warned, strict=True)
    ] == [True] * len(warned)
    again = place.rows("gold") - expected(FILES)
    assert again.total() == sum(brief.rows_out for brief in left) > 0


def test_a_deleted_checkpoint_is_refused_and_a_confirmed_query_continues(spark: SparkSession, place: Place) -> None:
    sinks = {"gold": DeltaSink(place.table("gold"))}
    run(place.outbox(sinks), windows(spark, place.inbox))
    shutil.rmtree(place.checkpoint)
    outbox = place.outbox(sinks)
    assert run(outbox, windows(spark, place.inbox)) is not None
    refused = outbox.exception()
    assert isinstance(refused, QueryForeign)
    assert place.rows("gold") == expected(FILES)
    with pytest.raises(QueryForeign):
        run(place.outbox(sinks), windows(spark, place.inbox))
    query = refused.hint.split("accept_query='")[1].split("'")[0]
    assert run(place.outbox(sinks), windows(spark, place.inbox), accept_query=query) is None
    assert place.rows("gold") == expected(FILES) + expected(FILES)


@pytest.mark.long  # in the gate: tests/outbox/test_rule.py
def test_edited_offsets_are_refused(spark: SparkSession, place: Place) -> None:
    sinks = {"gold": DeltaSink(place.table("gold"))}
    run(place.outbox(sinks), windows(spark, place.inbox))
    newest = max((place.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.write_text(newest.read_text().replace('"batchTimestampMs":', '"batchTimestampMs": '))
    newest.with_name(f".{newest.name}.crc").unlink()
    write_files(place.inbox, range(4, 5))
    outbox = place.outbox(sinks)
    assert run(outbox, windows(spark, place.inbox)) is not None
    assert isinstance(outbox.exception(), BatchUnexpected)
    assert place.rows("gold") == expected(FILES)


def test_a_re_created_table_is_refused_and_can_be_confirmed(spark: SparkSession, place: Place) -> None:
    sinks = {"gold": DeltaSink(place.table("gold"))}
    run(place.outbox(sinks), windows(spark, place.inbox))
    shutil.rmtree(place.table("gold"))
    write_files(place.inbox, range(4, 5))
    outbox = place.outbox(sinks)
    assert run(outbox, windows(spark, place.inbox)) is not None
    refused = outbox.exception()
    assert isinstance(refused, IdentityChanged)
    assert "out.start(writer, accept_new_sink='gold')" in refused.hint
    assert "--conf" not in refused.hint
    assert run(place.outbox(sinks), windows(spark, place.inbox), accept_new_sink="gold") is None
    assert place.rows("gold") == expected(range(5)) - expected(FILES)


@pytest.mark.long  # in the gate: tests/delta/test_delta_table_from_a_backup.py
def test_a_table_that_lost_its_newest_rows_is_refused_and_gets_them_again(spark: SparkSession, place: Place) -> None:
    sinks = {"gold": DeltaSink(place.table("gold"))}
    run(place.outbox(sinks), windows(spark, place.inbox))
    newest = max(Path(place.table("gold"), "_delta_log").glob("*.json"))
    newest.unlink()
    write_files(place.inbox, range(4, 5))
    outbox = place.outbox(sinks)
    assert run(outbox, windows(spark, place.inbox)) is not None
    refused = outbox.exception()
    assert isinstance(refused, PublishConflict)
    restore = int(refused.context["restore"])
    assert f"out.start(writer, restore={restore})" in refused.hint
    assert re.search(rf"restore={restore}, rewind the query to batch \d+", refused.hint)
    assert run(place.outbox(sinks), windows(spark, place.inbox), restore=restore) is None
    assert place.rows("gold") == expected(range(5))


@pytest.mark.long  # in the gate: tests/outbox/test_rule.py
def test_an_outbox_can_be_added_to_a_query_with_batches(spark: SparkSession, place: Place) -> None:
    plain = windows(spark, place.inbox).writeStream.foreachBatch(lambda rows, number: rows.collect())
    plain.option("checkpointLocation", str(place.checkpoint)).trigger(availableNow=True).start().awaitTermination(300)
    write_files(place.inbox, range(4, 6))
    assert run(place.outbox({"gold": DeltaSink(place.table("gold"))}), windows(spark, place.inbox)) is None
    assert place.rows("gold") == expected(range(6)) - expected(FILES)


def test_output_mode_complete_is_refused_at_the_start(spark: SparkSession, place: Place) -> None:
    outbox = place.outbox({"gold": DeltaSink(place.table("gold"))})
    with pytest.raises(ConfigInvalid, match="complete"):
        outbox.start(windows(spark, place.inbox).writeStream.outputMode("complete"))


def test_a_second_start_and_a_close_are_refused_while_the_query_runs(spark: SparkSession, place: Place) -> None:
    outbox, rows = place.outbox({"gold": DeltaSink(place.table("gold"))}), windows(spark, place.inbox)
    query = outbox.start(rows.writeStream)
    try:
        with pytest.raises(ConfigInvalid, match="is running"):
            outbox.start(rows.writeStream)
        with pytest.raises(ConfigInvalid, match="is running"):
            outbox.close()
        query.processAllAvailable()
    finally:
        query.stop()
    assert run(outbox, rows) is None
    assert place.rows("gold") == expected(FILES)


def test_a_frame_in_place_of_a_writer_is_refused(spark: SparkSession, place: Place) -> None:
    with pytest.raises(ConfigInvalid, match="takes a query's writer"):
        place.outbox({"gold": DeltaSink(place.table("gold"))}).start(windows(spark, place.inbox))  # type: ignore[arg-type]


def test_an_outbox_has_a_store_of_its_own(spark: SparkSession, place: Place) -> None:
    Store.open(place.store, "orders")
    with pytest.raises(StoreForeign, match="job 'orders'"):
        run(place.outbox({"gold": DeltaSink(place.table("gold"))}), windows(spark, place.inbox))


@pytest.mark.long  # in the gate: tests/outbox/test_rule.py
def test_files_of_killed_runs_are_deleted(spark: SparkSession, place: Place) -> None:
    sinks = {"gold": DeltaSink(place.table("gold"))}
    run(place.outbox(sinks), windows(spark, place.inbox))
    orphan = Path(place.table("gold")) / "ckpt-gold-i1-b99-t0-0-0123456789abcdef0123456789abcdef.parquet"
    orphan.write_bytes(b"of a task that was killed")
    os.utime(orphan, (BEGIN_S, BEGIN_S))
    write_files(place.inbox, range(4, 5))
    run(place.outbox(sinks), windows(spark, place.inbox))
    assert place.rows("gold") == expected(range(5))
    assert not orphan.exists()


@pytest.mark.parametrize("columns", [["INTERVAL '1' MONTH AS age"], ["id", "id"]])
def test_a_batch_is_discarded_whatever_columns_its_sinks_leave_out(spark: SparkSession, columns: list[str]) -> None:
    """The sinks' columns alone are read in Python when the batch runs for the first time."""
    passed = Observation()
    rows = spark.range(7).observe(passed, functions.count("*").alias("rows"))

    FrameBatch(rows.selectExpr(*columns), 0).discard()

    assert passed.get["rows"] == 7


@pytest.mark.long  # in the gate: tests/outbox/test_rule.py
def test_old_batches_leave_the_log(spark: SparkSession, place: Place) -> None:
    write_files(place.inbox, range(4, 22))
    rows = spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1).json(str(place.inbox))
    for _ in range(2):
        assert run(place.outbox({"gold": DeltaSink(place.table("gold"))}, keep_epochs=2), rows) is None
        write_files(place.inbox, range(22, 23))
    assert len(Store.open(place.store, "orders", kind="outbox").log.state().epochs) < 22


def test_metrics_lineage_and_a_listener_see_a_querys_batches(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    lineage_file = place.folder / "lineage.jsonl"
    for name, value in {"TYPE": "file", "LOG_FILE_PATH": str(lineage_file), "APPEND": "true"}.items():
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)
    port = endpoints.serve("127.0.0.1", 0)
    sinks = {"gold": DeltaSink(place.table("gold")), "some": DeltaSink(place.table("some")).rows("k", where="n > 2")}
    outbox = place.outbox(sinks, metrics="prometheus://127.0.0.1:0", lineage="tests")
    heard = Heard()
    outbox.addListener(heard)
    assert run(outbox, windows(spark, place.inbox)) is None
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    found = {
        (each.name, each.labels.get("sink") or each.labels.get("verdict")): each.value
        for family in families
        for each in family.samples
        if each.labels.get("ckpt_job") == "orders"
    }
    rows = expected(FILES).total()
    assert found["spark_ckpt_outbox_batches_total", "new"] == len(heard.committed) >= len(FILES)
    assert found["spark_ckpt_staged_rows_total", "gold"] == found["spark_ckpt_published_rows_total", "gold"] == rows
    assert found["spark_ckpt_unpublished_epochs", "some"] == found["spark_ckpt_running", None] == 0
    sent = [json.loads(line) for line in lineage_file.read_text().splitlines()]
    assert [each["eventType"] for each in sent] == ["START", *["RUNNING"] * len(heard.committed), "COMPLETE"]
    assert {each["name"] for each in sent[-1]["inputs"]} == {str(place.inbox)}
    assert {each["name"] for each in sent[-1]["outputs"]} == {place.table("gold"), place.table("some")}


@pytest.mark.long  # in the gate: tests/cli/test_outbox_in_commands.py
def test_commands_read_the_store_of_a_query_with_an_unpublished_batch(
    spark: SparkSession, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    sinks = {"gold": DeltaSink(place.table("gold")), "silver": FailingSink(place.table("silver"), 3)}
    assert run(place.outbox(sinks), windows(spark, place.inbox)) is not None
    capsys.readouterr()
    page = str(place.folder / "page.html")
    for words in ("list", "show", "verify --deep", "restore 2 --dry-run", "savepoint add before", f"report -o {page}"):
        verb, *more = words.split()
        at = more[:1] if verb == "savepoint" else []
        assert exit_code([verb, *at, place.store, *more[len(at) :]]) == 0, words
    said = capsys.readouterr().out
    assert re.search(r" 3 +2 +unpublished", said)
    assert re.search(r"silver +\d+ +\d+ +\S+ \S+ +no", said)
    assert "whole" in said
    assert "epoch 3 is not known to be published" in said
    assert "savepoint before is epoch 3" in said
    assert '"kind": "outbox"' in Path(page).read_text()
    assert (
        run(place.outbox({name: DeltaSink(place.table(name)) for name in sinks}), windows(spark, place.inbox)) is None
    )
    assert both(place) == {"gold": expected(FILES), "silver": expected(FILES)}


def test_a_writer_with_a_function_or_a_checkpoint_of_its_own_is_refused_and_without_them_runs(
    spark: SparkSession, place: Place
) -> None:
    outbox = place.outbox({"gold": DeltaSink(place.table("gold"))})
    rows = windows(spark, place.inbox)
    with pytest.raises(ConfigInvalid, match="foreachBatch"):
        outbox.start(rows.writeStream.foreachBatch(lambda frame, number: None))
    with pytest.raises(ConfigInvalid, match="checkpoint") as refused:
        outbox.start(rows.writeStream.option("checkpointLocation", place.table("another")))
    assert refused.value.context["checkpoint"] == str(place.checkpoint)
    same = rows.writeStream.option("checkpointLocation", f"file://{place.checkpoint}").trigger(availableNow=True)
    outbox.start(same).awaitTermination(300)
    outbox.close()
    assert place.rows("gold") == expected(FILES)


WRONG_ROWS = {
    "a filter of an unknown column": {"where": "nope > 2"},
    "a filter that is no condition": {"where": "k"},
    "no SQL": {"w": "k k k"},
    "an unknown column": {"w": "nope"},
}


@pytest.mark.parametrize("wrong", WRONG_ROWS.values(), ids=[*WRONG_ROWS])
def test_wrong_sql_of_a_sink_is_refused_at_the_start_with_the_querys_columns(
    spark: SparkSession, place: Place, wrong: Mapping[str, str]
) -> None:
    outbox = place.outbox({"gold": DeltaSink(place.table("gold")).rows(**wrong)})
    with pytest.raises(SinkInvalid) as refused:
        outbox.start(windows(spark, place.inbox).writeStream)
    assert refused.value.context["sink"] == "gold"
    assert "w, k, n, s" in refused.value.hint
    assert not place.checkpoint.exists()


def test_rows_that_a_table_does_not_take_are_refused_at_the_start_and_corrected_ones_run(
    spark: SparkSession, place: Place
) -> None:
    gold = DeltaSink(place.table("gold"))
    run(place.outbox({"gold": gold}), windows(spark, place.inbox))
    write_files(place.inbox, range(4, 5))
    wrong = place.outbox({"gold": gold.rows("w", "k", "n", s="'x'")})
    with pytest.raises(SinkInvalid):
        wrong.start(windows(spark, place.inbox).writeStream)
    assert run(place.outbox({"gold": gold.rows("w", "k", "n", "s")}), windows(spark, place.inbox)) is None
    assert place.rows("gold") == expected(range(5))


@pytest.mark.long  # in the gate: tests/outbox/test_rule.py
def test_two_sinks_may_write_to_one_table(spark: SparkSession, place: Place) -> None:
    sinks = {name: DeltaSink(place.table("gold")) for name in ("gold", "again")}
    assert run(place.outbox(sinks), windows(spark, place.inbox)) is None
    assert place.rows("gold") == expected(FILES) + expected(FILES)


@pytest.mark.long  # in the gate: tests/outbox/test_rule.py
def test_a_mistyped_checkpoint_is_refused_by_its_name_and_the_right_one_continues(
    spark: SparkSession, place: Place
) -> None:
    sinks = {"gold": DeltaSink(place.table("gold"))}
    run(place.outbox(sinks), windows(spark, place.inbox))
    mistyped = Outbox(place.store, name="orders", checkpoint=place.table("mistyped"), sinks=sinks)
    assert run(mistyped, windows(spark, place.inbox)) is not None
    refused = mistyped.exception()
    assert isinstance(refused, QueryForeign)
    assert refused.context["checkpoint"] == place.table("mistyped")
    write_files(place.inbox, range(4, 5))
    assert run(place.outbox(sinks), windows(spark, place.inbox)) is None
    assert place.rows("gold") == expected(range(5))


@pytest.mark.long  # in the gate: every next step in tests/simulator/test_outbox_world.py
def test_the_advice_of_an_older_store_is_followed_until_the_query_runs(spark: SparkSession, place: Place) -> None:
    """The store is a backup, from when a sink lacked a batch. The newer log is permanently lost."""
    good = {name: DeltaSink(place.table(name)) for name in ("gold", "silver")}
    failing = {**good, "silver": FailingSink(place.table("silver"), 3)}
    assert run(place.outbox(failing), windows(spark, place.inbox)) is not None
    shutil.copytree(place.store, place.table("backup"))
    assert run(place.outbox(good), windows(spark, place.inbox)) is None
    shutil.rmtree(place.store)
    shutil.copytree(place.table("backup"), place.store)
    write_files(place.inbox, range(4, 5))
    steps = []
    confirmed: dict[str, object] = {}
    for _ in range(6):
        outbox = place.outbox(good)
        with suppress(CkptError):  # a start that publishes the rest may be refused
            if run(outbox, windows(spark, place.inbox), **confirmed) is None:
                break
        error = outbox.exception()
        assert error is not None
        assert not re.search(r"\bjobs?\b", error.hint)
        confirmed = {}
        if found := re.search(r"accept-loss \S+ --epoch (\d+) --incarnation (\d+)", error.hint):
            steps.append("accept loss")
            assert exit_code(["accept-loss", place.store, "--epoch", found[1], "--incarnation", found[2]]) == 0
        elif found := re.search(r"restore=(\d+), rewind the query to batch (\d+)", error.hint):
            steps.append("restore")
            assert f"out.start(writer, restore={found[1]})" in error.hint
            place.rewind(int(found[2]))
            confirmed = {"restore": int(found[1])}
        elif found := re.search(r"rewind the query to batch (\d+)", error.hint):
            steps.append("rewind")
            place.rewind(int(found[1]))
    assert steps == ["rewind", "accept loss", "restore"]
    for name in good:
        assert not expected(range(5)) - place.rows(name)


class LeavesFile(RunListener):
    """At a late batch of the run, a task of an earlier incarnation that still runs writes a file."""

    def __init__(self, path: Path, batch: int) -> None:
        self._path, self._batch = path, batch

    def onEpochCommitted(self, event: EpochEvent) -> None:
        if event.detail["batch"] == self._batch:
            self._path.write_bytes(b"of a task that nothing has stopped")


@pytest.mark.long  # in the gate: tests/outbox/test_rule.py and tests/store/test_retention.py
def test_files_of_old_batches_and_of_dead_tasks_leave_the_store_every_20_batches(
    spark: SparkSession, place: Place
) -> None:
    rows = spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1).json(str(place.inbox))
    target = Target()
    assert run(place.outbox({"kept": MemorySink(target)}, keep_epochs=2), rows) is None
    (folder,) = {path.parent for path in place.staged("store")}
    write_files(place.inbox, range(4, 27))
    outbox = place.outbox({"kept": MemorySink(target)}, keep_epochs=2)
    dead = folder / "ckpt-kept-i1-b1-t0-0-0123456789abcdef0123456789abcdef.parquet"
    outbox.addListener(LeavesFile(dead, 15))
    assert run(outbox, rows) is None
    assert not dead.exists()
    log_state = Store.open(place.store, "orders", kind="outbox").log.state()
    kept = {int(path.name.split("-b")[1].split("-")[0]) for path in place.staged("store")}
    assert kept == {brief.spark_batch.number for brief in log_state.epochs}
    assert len(kept) < 20
    assert len(target.rows) == 27 * PER_FILE
