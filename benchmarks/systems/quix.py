"""Quix Streams: two processes in one consumer group, output, changelog and offsets in one Kafka transaction per commit."""

from __future__ import annotations

import fcntl
import uuid
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING

from benchmarks.systems import Environment, Run, System

if TYPE_CHECKING:
    from collections.abc import Callable

    from quixstreams import Application
    from quixstreams.dataframe import StreamingDataFrame

HERE = Environment("quix", ("quixstreams==3.28.1",))
NOTE = (
    "transactional ids and group members are fixed; with its defaults a restart waits for the session timeout of 45 s"
)
SYSTEMS = (
    System("quix", "Quix Streams", "quix", "exactly-once", HERE, "benchmarks.systems.quix", processes=2, note=NOTE),
)


def main() -> None:
    """Run one job until killed."""
    run = Run.of_command_line()
    folder = Path(run.folder)
    with seat(folder) as taken:
        app = application(run, group(folder), Path(taken.name).name)
        express(run, app)
        app.run()


def group(folder: Path) -> str:
    """A consumer group per folder: a new folder reads from the beginning, and gets new changelog topics."""
    name = folder / "group"
    if not name.exists():
        own = folder / uuid.uuid4().hex
        own.write_text(f"quix-{own.name}")
        with suppress(FileExistsError):  # the other process was first
            name.hardlink_to(own)
        own.unlink()
    return name.read_text()


def seat(folder: Path) -> IO[str]:
    """The lowest number that no other living process holds. The lock ends with the process, even if it is killed."""
    for number in count():
        file = (folder / f"seat-{number}").open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
        else:
            return file
    raise AssertionError("counting has no end")


def application(run: Run, group: str, seat: str) -> Application:
    """Both processes share `folder`: the stores are one RocksDB per partition, so none is restored when a partition moves."""
    from quixstreams import Application

    intervals = {"commit_interval": run.interval_ms / 1000} if run.interval_ms else {}
    return Application(
        broker_address=run.servers,
        consumer_group=group,
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        state_dir=Path(run.folder) / "state",
        consumer_extra_config=consumer(group, seat),
        producer_extra_config=producer(group, seat),
        # The commit interval is checked between polls: with the default of 1 s, a pause of the input delays a commit that long.
        consumer_poll_timeout=0.05,
        **intervals,
    )


def consumer(group: str, seat: str) -> dict[str, object]:
    """Settings of a static member: a restarted process gets its predecessor's partitions at once, not after the session's 45 s."""
    return {"group.instance.id": f"{group}-{seat}"}


def producer(group: str, seat: str) -> dict[str, object]:
    """Settings for `confluent_kafka.Producer`."""
    return {
        # The default is random; then a killed process's open transaction blocks readers until it times out.
        "transactional.id": f"{group}-{seat}",
        # Nothing is visible before the commit, which sends at once: fuller batches cost no latency.
        "linger.ms": 100,
        # A commit writes every changed key to the changelog in one go.
        "queue.buffering.max.messages": 1_000_000,
    }


def express(run: Run, app: Application) -> None:
    """From source to target, as bytes: no JSON."""
    source = app.topic(run.source, key_deserializer="bytes", value_deserializer="bytes")
    target = app.topic(run.target, key_serializer="bytes", value_serializer="bytes")
    job: Callable[[StreamingDataFrame], StreamingDataFrame] = run.implementation  # type: ignore[assignment]
    job(app.dataframe(source)).to_topic(target)


if __name__ == "__main__":
    main()
