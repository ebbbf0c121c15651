"""`format("outbox")`: a query without `foreachBatch` has every row once in every sink."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from integration_tests.outbox.format_outboxes import write_module
from integration_tests.outbox.outbox_query import Place, expected, windows, write_files
from integration_tests.spark import end_jvm, plain_session
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.store.store import Store

pytestmark = pytest.mark.spark
FILES = range(4)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from plain_session()


class Query(Place):
    """Folders of one query, and the module with its outboxes."""

    def __init__(self, folder: Path, module: str) -> None:
        super().__init__(folder)
        self.module = module

    def writer(self, rows: DataFrame, outbox: str, checkpoint: Path | None = None) -> DataStreamWriter:
        writer = rows.writeStream.format("outbox").option("outbox", f"{self.module}:{outbox}")
        writer = writer.option("checkpointLocation", str(checkpoint or self.checkpoint))
        return writer.trigger(availableNow=True)

    def run(self, rows: DataFrame, outbox: str, **options: str) -> str:
        """Run the query over the present input. Return the text of its error, empty if there is none."""
        query = self.writer(rows, outbox).options(**options).start()
        with suppress(StreamingQueryException):
            assert query.awaitTermination(300)
        return str(query.exception() or "")

    def log_state(self) -> LogState:
        return Store.open(self.store, "orders", kind="outbox").log.state()


@pytest.fixture
def place(modules: Path, tmp_path: Path) -> Query:
    write_files(tmp_path / "in", FILES)
    return Query(tmp_path, write_module(modules, tmp_path))


@pytest.mark.long  # in the gate: tests/simulator/test_outbox_format_world.py, and a second start below
def test_every_row_is_in_the_table_once_over_several_starts(spark: SparkSession, place: Query) -> None:
    assert place.run(windows(spark, place.inbox), "gold") == ""
    write_files(place.inbox, range(4, 6))
    assert place.run(windows(spark, place.inbox), "gold") == ""
    assert place.rows("gold") == expected(range(6))
    log_state = place.log_state()
    assert log_state.incarnation == 2  # one for each start: the process of a commit keeps it from batch to batch


def test_each_sink_gets_the_columns_and_rows_that_it_names(spark: SparkSession, place: Query) -> None:
    rows = windows(spark, place.inbox).selectExpr("*", "n * 2 AS `twice the n`", "nullif(n > 2, false) AS big")
    assert place.run(rows, "some") == ""
    assert place.rows("gold") == expected(FILES)
    big = DeltaTable(place.table("big")).to_pyarrow_table().to_pylist()
    wanted = [(k, 2 * n) for (_, k, n, _), times in expected(FILES).items() if n > 2 for _ in range(times)]
    assert sorted((row["k"], row["twice"]) for row in big) == sorted(wanted)


@pytest.mark.parametrize(
    ("outbox", "condition", "said"),
    [
        ("needs_spark", "CKPT_CONFIG_INVALID", "sink 'gold' needs Spark to publish"),
        # in the gate: tests/outbox/test_format_options.py
        *(
            pytest.param(outbox, "CKPT_CONFIG_INVALID", said, marks=pytest.mark.long)
            for outbox, said in {
                "an_expression": "'n * 2 AS n', which is no column of the query",
                "no_outbox": "is int, not an Outbox",
                "unknown": "cannot be imported",
                "": "module:attribute",
            }.items()
        ),
    ],
)
def test_an_outbox_that_cannot_work_is_refused_before_the_first_task(
    spark: SparkSession, place: Query, outbox: str, condition: str, said: str
) -> None:
    error = place.run(windows(spark, place.inbox), outbox)
    assert f"[{condition}]" in error
    assert said in error
    assert not Path(place.table("gold")).exists()


def test_output_mode_complete_is_refused(spark: SparkSession, place: Query) -> None:
    counted = spark.readStream.schema("k string").json(str(place.inbox)).groupBy("k").count()
    query = place.writer(counted, "gold").outputMode("complete").start()
    with pytest.raises(StreamingQueryException, match="output mode complete"):
        query.awaitTermination(300)


def test_a_batch_that_runs_again_is_discarded_and_published(spark: SparkSession, place: Query) -> None:
    """As if Spark had died right before its commit, without new input afterwards."""
    assert place.run(windows(spark, place.inbox), "gold") == ""
    newest = max(int(path.name) for path in (place.checkpoint / "commits").glob("[0-9]*"))
    (place.checkpoint / "commits" / f".{newest}.crc").unlink()
    (place.checkpoint / "commits" / str(newest)).unlink()
    before = place.log_state().epochs
    assert place.run(windows(spark, place.inbox), "gold") == ""
    assert place.rows("gold") == expected(FILES)
    assert place.log_state().epochs == before
    assert (place.checkpoint / "commits" / str(newest)).exists()


@pytest.mark.long  # in the gate: tests/outbox/test_rule.py, and the deleted checkpoint in test_outbox.py
def test_a_deleted_checkpoint_is_refused_and_the_option_of_its_error_continues(
    spark: SparkSession, place: Query
) -> None:
    assert place.run(windows(spark, place.inbox), "gold") == ""
    shutil.rmtree(place.checkpoint)
    error = place.run(windows(spark, place.inbox), "gold")
    assert "[CKPT_QUERY_FOREIGN]" in error
    assert '.option("accept_query", ...)' in error
    assert place.rows("gold") == expected(FILES)
    query = error.split("accept_query='")[1].split("'")[0]
    assert place.run(windows(spark, place.inbox), "gold", accept_query=query) == ""
    assert place.rows("gold") == expected(FILES) + expected(FILES)


@pytest.mark.long  # in the gate: tests/outbox/test_format_options.py
def test_two_queries_of_a_session_each_have_an_outbox(spark: SparkSession, place: Query) -> None:
    """Their commits may exchange the Python processes that Spark keeps."""
    write_files(place.inbox, range(4, 10))
    queries = []
    for outbox in ("gold", "other"):
        writer = place.writer(windows(spark, place.inbox), outbox, place.folder / f"checkpoint of {outbox}")
        queries.append(writer.start())
    for query in queries:
        assert query.awaitTermination(300)
    assert [query.exception() for query in queries] == [None, None]
    assert (place.rows("gold"), place.rows("other")) == (expected(range(10)), expected(range(10)))


@pytest.mark.long  # in the gate: tests/simulator/test_outbox_format_world.py
def test_java_that_dies_between_both_commits_loses_and_doubles_nothing(modules: Path, place: Query) -> None:
    """The kill ends the session, so this test is the last one. The next start has no new input."""
    end_jvm()
    for session in plain_session():
        with suppress(Exception):  # py4j's, once Java is gone
            place.run(windows(session, place.inbox), "kills")
        break
    end_jvm()
    assert (place.folder / "java killed").exists()
    assert place.rows("gold") != expected(FILES)
    before = place.log_state()
    assert len([*(place.checkpoint / "commits").glob("[0-9]*")]) == len(before.epochs) - 1
    for session in plain_session():
        assert place.run(windows(session, place.inbox), "kills") == ""
        break
    assert place.rows("gold") == expected(FILES)
