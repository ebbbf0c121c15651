"""The surroundings of all trials of a campaign: one Spark session, one broker, and small jobs from files to sinks."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt
from integration_tests.campaign.hazards.verdicts import Rows
from integration_tests.spark import connected_session
from spark_ckpt.spark_internals.jvm import jvm_of

DRAIN_S = 240.0
PUBLISH = "90 seconds"


@dataclass
class Site:
    """The session and the broker's address (empty if the campaign needs none); a new folder for every trial. `known`: outputs that
    several trials are compared with."""

    spark: SparkSession
    servers: str
    folder: Path
    trials: int = 0
    known: dict[str, list[Rows]] = field(default_factory=dict)

    def fresh(self) -> Path:
        """The folder of the next trial. Folders of earlier trials are deleted."""
        shutil.rmtree(self.folder / f"trial-{self.trials}", ignore_errors=True)
        self.trials += 1
        path = self.folder / f"trial-{self.trials}"
        path.mkdir(parents=True)
        return path

    def forget_tables(self) -> None:
        """Clear delta-spark's cache of tables, as in a new process."""
        jvm_of(self.spark).org.apache.spark.sql.delta.DeltaLog.clearCache()

    def name(self, stem: str) -> str:
        """A name that no other trial uses, for topics and sinks."""
        return f"{stem}-{self.trials}"


@contextmanager
def site_of(folder: Path, servers: str = "") -> Iterator[Site]:
    """A site with a session that has the jars of Delta and Kafka."""
    session = connected_session()
    spark = next(session)
    try:
        yield Site(spark, servers, folder)
    finally:
        with suppress(StopIteration):
            next(session)


# -- jobs -----------------------------------------------------------------------------------------------------------------


@dataclass
class FileJob:
    """A job over JSON files. Every start calls `describe`, which connects the rows to sinks, so a scene can change the program."""

    site: Site
    folder: Path
    schema: str
    describe: Callable[[ckpt.Stream], None]
    settings: dict[str, object] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)
    files: int = 0

    def __post_init__(self) -> None:
        self.inbox.mkdir(parents=True, exist_ok=True)

    @property
    def inbox(self) -> Path:
        """The folder of input files."""
        return self.folder / "in"

    @property
    def store(self) -> str:
        """The job's store."""
        return str(self.folder / "store")

    def write(self, rows: Sequence[Mapping[str, object]]) -> Path:
        """Write one more file atomically."""
        path = self.inbox / f"part-{self.files:04}.json"
        hidden = self.inbox / f".part-{self.files:04}.json"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        hidden.rename(path)
        self.files += 1
        return path

    def job(self) -> ckpt.Job:
        """The job as the program now describes it."""
        job = new_job(self.site, Path(self.store), **({"interval": "every batch"} | self.settings))
        source = {"maxFilesPerTrigger": 1} | self.source
        stream = job.source("s", FilesSource(str(self.inbox), "json", self.schema, **source))
        self.describe(stream)
        return job

    def drain(self, **start: Any) -> None:
        """Start, read the present input, end. Raises the job's error."""
        drained(self.job(), **start)

    def start(self, **start: Any) -> ckpt.Run:
        """Start a run without an end."""
        return self.job().start(**start)


def new_job(site: Site, store: Path, name: str = "hazard", **settings: object) -> ckpt.Job:
    """A job with short timeouts."""
    usual = {"interval": "1 second", "max_failed_epochs": 2, "publish_timeout": PUBLISH}
    return ckpt.Job(site.spark, name, store=str(store), **(usual | settings))


def drained(job: ckpt.Job, **start: Any) -> None:
    """Start, read the present input, end. Raises the job's error, or `TimeoutError` if it does not end."""
    run = job.start(availableNow=True, **start)
    if not run.awaitTermination(DRAIN_S):
        with suppress(Exception):
            run.stop(30)
        raise TimeoutError(f"the drain does not end within {DRAIN_S:.0f} s")


def ended(run: ckpt.Run) -> None:
    """Stop a run in order. Raises its error."""
    if run.isActive:
        run.stop(90)
    if not run.awaitTermination(90):
        raise TimeoutError("the run does not end within 90 s")


def happens(question: Callable[[], object], seconds: float) -> bool:
    """Wait at most `seconds` until the answer is true, and return it. A question that fails counts as false."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(Exception):
            if question():
                return True
        time.sleep(0.2)
    return False


def wait_for(question: Callable[[], object], what: str, seconds: float = 120.0) -> None:
    """Wait until the answer is true. Raises `TimeoutError`."""
    if not happens(question, seconds):
        raise TimeoutError(f"{what}: not within {seconds:.0f} s")


# -- tables ---------------------------------------------------------------------------------------------------------------


def table_rows(path: Path | str, columns: Sequence[str]) -> list[tuple[object, ...]]:
    """All rows of a Delta table with these columns; a missing column is null. A missing table has no rows."""
    if not (Path(path) / "_delta_log").is_dir() or not any((Path(path) / "_delta_log").glob("*.json")):
        return []
    table = DeltaTable(str(path)).to_pyarrow_table()
    return [tuple(row.get(name) for name in columns) for row in table.to_pylist()]


# -- topics ---------------------------------------------------------------------------------------------------------------


def admin(servers: str) -> AdminClient:
    """A client of the broker."""
    return AdminClient({"bootstrap.servers": servers, "log_level": 0})


def make_topic(servers: str, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
    """Create the topic and wait until the broker lists it."""
    client = admin(servers)

    def made() -> bool:
        topic = client.list_topics(name, timeout=10).topics.get(name)
        return topic is not None and topic.error is None and len(topic.partitions) == partitions

    for future in client.create_topics([NewTopic(name, partitions, 1, config=dict(config or {}))]).values():
        future.result(30)
    wait_for(made, f"topic {name}", 30)


def delete_topic(servers: str, name: str) -> None:
    """Delete the topic and wait until it is gone."""
    client = admin(servers)
    for future in client.delete_topics([name]).values():
        future.result(30)
    wait_for(lambda: name not in client.list_topics(timeout=10).topics, f"the end of topic {name}", 30)


def forget_groups(servers: str, sink: str) -> int:
    """Delete the consumer groups that hold the markers of a sink; return their number."""
    client = admin(servers)
    listed = client.list_consumer_groups(request_timeout=30).result()
    groups = [each.group_id for each in listed.valid if re.fullmatch(rf".+\.{re.escape(sink)}\.\d+", each.group_id)]
    if groups:
        for future in client.delete_consumer_groups(groups, request_timeout=30).values():
            future.result()
    return len(groups)


def produce(servers: str, topic: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write records; each has the arguments of confluent-kafka's `produce`."""
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, "log_level": 0})
    for row in rows:
        producer.produce(topic, on_delivery=lambda error, _: failed.append(error) if error else None, **row)
        producer.poll(0)
    assert producer.flush(30) == 0
    assert not failed, failed[0]


def records(servers: str, topic: str) -> list[Any]:
    """Every committed record of the topic."""
    client = admin(servers)
    left = set(client.list_topics(topic, timeout=10).topics[topic].partitions)
    settings = {"group.id": "hazards", "enable.auto.commit": False, "isolation.level": "read_committed"}
    settings |= {"bootstrap.servers": servers, "enable.partition.eof": True, "log_level": 0}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in left])
    found: list[Any] = []
    deadline = time.monotonic() + 30
    while left and time.monotonic() < deadline:
        for message in consumer.consume(1000, 0.2):
            if message.error() is None:
                found.append(message)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
            else:
                raise RuntimeError(str(message.error()))
    consumer.close()
    assert not left, f"partitions {left} of {topic} were not read to their end"
    return found


# -- commands -------------------------------------------------------------------------------------------------------------


def command(words: Sequence[str]) -> tuple[int, str]:
    """Run a command of the product in a new process, as an operator does; return its exit code and all output."""
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


def asked(words: Sequence[str]) -> tuple[int, str]:
    """Run a command in this process."""
    import contextlib
    import io

    from spark_ckpt.cli.app import exit_code

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = exit_code(list(words))
    return code, out.getvalue()


def counted(rows: Sequence[tuple[object, ...]]) -> Rows:
    """Rows with their counts."""
    return Counter(rows)
