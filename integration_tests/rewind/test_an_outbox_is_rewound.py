"""Kafka to an outbox with state, Kafka and Delta: a query is rewound to before a bug, and continues as if it had never had it.

The table is that of a run without the bug. The topic has, in addition, exactly the rows that the rewind lists.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout
from spark_ckpt_delta import DeltaSink
from spark_ckpt_kafka import KafkaSink

from integration_tests.adopt.totals import OUTPUT, RECORD, STATE, Record, add_up, records, rows_of
from integration_tests.broker import Broker
from integration_tests.spark import connected_session
from integration_tests.survival.ledger import create_topic, read_committed
from spark_ckpt.cli.app import exit_code
from spark_ckpt.failpoints import VARIABLE
from spark_ckpt.outbox.outbox import Outbox

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]
PER_BATCH, GOOD, BAD = 60, 2, 2
Row = tuple[str, int, int, int]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from connected_session()


@dataclass
class Query:
    """A plain query with an outbox, its topics and folders. `sent`: records; `good`: the last batch without the bug."""

    spark: SparkSession
    servers: str
    folder: Path
    source: str
    topic: str
    sent: int = 0
    good: int = -1

    @property
    def checkpoint(self) -> str:
        return str(self.folder / "checkpoints" / "totals")

    @property
    def store(self) -> str:
        return str(self.folder / "outbox")

    def send(self, batches: int) -> None:
        """Send the input of `batches` batches. Records of one user are in one partition."""
        producer = Producer({"bootstrap.servers": self.servers, "enable.idempotence": True})
        for user, seq, amount in records(self.sent, PER_BATCH * batches):
            producer.produce(self.source, json.dumps({"user": user, "seq": seq, "amount": amount}), user)
        assert producer.flush(60) == 0
        self.sent += PER_BATCH * batches

    def run(self, sign: int = 1) -> Exception | None:
        """Run the query over the present input. `sign`: of the amounts, -1 is a bug. Return the error that ended it."""
        reader = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.servers)
        lines = reader.option("subscribe", self.source).option("startingOffsets", "earliest")
        parsed = lines.option("maxOffsetsPerTrigger", PER_BATCH).load()
        rows = parsed.select(F.from_json(F.col("value").cast("string"), RECORD).alias("r")).select("r.*")
        totals = (
            rows.withColumn("amount", F.col("amount") * sign)
            .groupBy("user")
            .applyInPandasWithState(add_up, OUTPUT, STATE, "append", GroupStateTimeout.NoTimeout)
        )
        sinks = {
            "gold": DeltaSink(str(self.folder / "gold")),
            "alerts": KafkaSink(self.servers, self.topic).rows(key="user", value="to_json(struct(*))"),
        }
        out = Outbox(self.store, name="totals", checkpoint=self.checkpoint, sinks=sinks, keep_epochs=100)
        query = out.start(totals.writeStream.outputMode("append").trigger(availableNow=True))
        with suppress(StreamingQueryException):
            assert query.awaitTermination(300)
        out.close()
        return query.exception()

    def every(self) -> list[Record]:
        return records(0, self.sent)

    def table(self) -> list[Row]:
        found = DeltaTable(str(self.folder / "gold")).to_pyarrow_table().select(["user", "seq", "n", "total"])
        return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))

    def shown(self) -> Counter[Row]:
        values = [json.loads(record.value()) for record in read_committed(self.servers, self.topic)]
        return Counter((value["user"], value["seq"], value["n"], value["total"]) for value in values)


@pytest.fixture
def query(spark: SparkSession, broker: Broker, tmp_path: Path) -> Query:
    """Batches of correct records, then some with the bug. `good`: the last correct batch."""
    made = Query(
        spark, broker.servers, tmp_path, create_topic(broker.servers, "in"), create_topic(broker.servers, "out")
    )
    made.send(GOOD)
    assert made.run() is None
    made.good = max(int(path.name) for path in Path(made.checkpoint, "commits").glob("[0-9]*"))
    made.send(BAD)
    assert made.run(sign=-1) is None
    assert made.table() != rows_of(made.every())
    return made


def command(arguments: Sequence[str], failpoint: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command as a user does, in its own process; `failpoint` kills it there."""
    environment = os.environ | ({VARIABLE: f"{failpoint}:kill"} if failpoint else {})
    whole = [sys.executable, "-m", "spark_ckpt", "rewind", *arguments]
    return subprocess.run(whole, capture_output=True, text=True, timeout=300, env=environment)


def listed(record: dict[str, object]) -> Counter[Row]:
    """Rows that the rewind lists: those of its files, with the listed count of each batch."""
    found: Counter[Row] = Counter()
    for outbox in record["outboxes"]:
        said = {left["batch"]: left["rows"]["alerts"] for left in outbox["left"] if left["rows"].get("alerts")}
        tables = [pq.read_table(path) for path in sorted(Path(outbox["rows"]["alerts"]).glob("*.parquet"))]
        for table in tables:
            [batch] = set(table.column("ckpt_batch").to_pylist())
            assert said.pop(batch) == table.num_rows
            values = [json.loads(value) for value in table.column("value").to_pylist()]
            found += Counter((value["user"], value["seq"], value["n"], value["total"]) for value in values)
        assert not said
    return found


@pytest.mark.parametrize(
    "points",
    [
        ("REWIND_TABLE_COMMITTED",),
        # in the gate: tests/rewind/test_outboxes_are_rolled_back.py
        pytest.param(
            ("REWIND_OUTBOX_TAKEN", "REWIND_TABLE_COMMITTED", "REWIND_OUTBOX_BRANCHED"), marks=pytest.mark.long
        ),
    ],
    ids=["table committed", "every point"],
)
def test_a_query_is_rewound_with_its_outbox_and_a_killed_apply_continues(
    query: Query, capsys: pytest.CaptureFixture[str], points: tuple[str, ...]
) -> None:
    plan = query.folder / "plan.json"
    arguments = ["plan", query.checkpoint, "--outbox", query.store, "--to", f"totals@{query.good}"]
    assert exit_code(["rewind", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "continues from" in printed
    assert re.search(rf"sink alerts has \d+ rows of batch {query.good + 1} \(epoch {query.good + 2}\)", printed)
    assert exit_code(["rewind", *arguments, "--json"]) == 0
    plan.write_text(capsys.readouterr().out)
    apply = ["apply", str(plan), "--watch-s", "0", "--settle-s", "0", "--json"]
    for point in points:
        assert command(apply, point).returncode == -9
        refused = query.run()
        assert "rewind" in str(refused)
    assert exit_code(["rewind", *apply]) == 0
    record = json.loads(capsys.readouterr().out)
    assert query.table() == rows_of(query.every()[: GOOD * PER_BATCH])

    query.send(1)
    assert query.run() is None

    assert query.table() == rows_of(query.every())
    again = listed(record)
    assert again.total() == BAD * PER_BATCH
    assert query.shown() == again + Counter(rows_of(query.every()))


@pytest.mark.long  # in the gate: tests/rewind
def test_after_an_undo_the_query_continues_with_the_bug(query: Query) -> None:
    plan = query.folder / "plan.json"
    before, shown = query.table(), query.shown()
    arguments = ["plan", query.checkpoint, "--outbox", query.store, "--to", f"totals@{query.good}", "--json"]
    plan.write_text(command(arguments).stdout)
    quick = [str(plan), "--watch-s", "0", "--settle-s", "0"]
    assert command(["apply", *quick]).returncode == 0
    undone = command(["undo", *quick])
    assert undone.returncode == 0, undone.stderr
    query.send(1)
    assert query.run(sign=-1) is None
    assert Counter(query.table()) == query.shown()
    assert not Counter(before) - Counter(query.table())
    assert (query.shown() - shown).total() == PER_BATCH
