"""Times far from now: files modified in the future or long ago, values of years 1 and 9999, and the hour that occurs twice."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F
from spark_ckpt_delta import DeltaSink, DeltaSource
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt
from integration_tests.campaign.hazards import ways
from integration_tests.campaign.hazards.site import Site, drained, new_job, table_rows
from integration_tests.campaign.hazards.trials import Drawn
from integration_tests.campaign.hazards.verdicts import Rows, Scene, Way
from spark_ckpt.errors import CkptError

YEAR_S = 365 * 86_400
MOMENTS: dict[str, Callable[[], float]] = {
    "an hour ahead": lambda: time.time() + 3600,
    "in ten years": lambda: time.time() + 10 * YEAR_S,
    "in 2096": lambda: 4e9,
    "in 1970": lambda: 0.0,
    "in 1969": lambda: -86_400.5,
    "a year ago": lambda: time.time() - YEAR_S,
}
FAR = (
    "0001-01-01T00:00:00", "0001-01-02T12:00:00.000001", "1582-10-14T00:00:00", "1677-09-21T00:12:43", "1899-12-31T23:59:59",
    "1969-12-31T23:59:59.999999", "1970-01-01T00:00:00", "1970-01-01T00:00:00.000001", "2038-01-19T03:14:08",
    "2262-04-11T23:47:17", "9999-12-31T23:59:59.999999",
)  # fmt: skip
TWICE = datetime(2024, 11, 3, 5, 30, tzinfo=UTC)
"""01:30 in New York for the first time, and an hour later for the second time."""


class OddModification(Scene):
    """One file of several has an odd modification time, from the start or between two drains."""

    def __init__(self, site: Site, folder: Path, draw: random.Random, moment: str) -> None:
        self.kind = f"file modified {moment}"
        self._site, self._folder, self._moment = site, folder, moment
        self._rows = [[(f"k{file}", 10 * file + n) for n in range(draw.randint(1, 4))] for file in range(4)]
        self._odd = draw.randrange(4)
        self._drains = draw.choice((1, 2, 4))
        self._age: str | None = None
        self._missing = draw.random() < 0.3
        """Consumed files are deleted before the next files arrive."""

    def _job(self) -> ckpt.Job:
        job = new_job(self._site, self._folder / "store")
        more = {} if self._age is None else {"maxFileAge": self._age}
        rows = job.source("s", FilesSource(str(self._inbox), "json", "k string, v long", **more))  # type: ignore[arg-type]
        rows.to(DeltaSink(str(self._folder / "out")), name="out")
        return job

    @property
    def _inbox(self) -> Path:
        return self._folder / "in"

    def act(self) -> None:
        self._inbox.mkdir()
        for drain in range(self._drains):
            self._feed(drain)
            drained(self._job())

    def _feed(self, drain: int) -> None:
        if self._missing:
            for path in self._inbox.iterdir():
                path.unlink()
        for file in range(drain * 4 // self._drains, (drain + 1) * 4 // self._drains):
            path = self._inbox / f"{file}.json"
            path.write_text("".join(json.dumps({"k": k, "v": v}) + "\n" for k, v in self._rows[file]))
            if file == self._odd:
                moment = MOMENTS[self._moment]()
                os.utime(path, (moment, moment))
        self._fed = drain + 1

    def wanted(self) -> Rows:
        return Counter(row for rows in self._rows for row in rows)

    def visible(self) -> Rows:
        return Counter(table_rows(self._folder / "out", ("k", "v")))

    def ways(self) -> Sequence[Way]:
        def continue_job() -> None:
            drained(self._job())
            for drain in range(self._fed, self._drains):
                self._feed(drain)
                drained(self._job())

        def touched(error: CkptError, found: Any) -> None:
            for path in self._inbox.iterdir():
                if path.name in str(error):
                    path.touch()
            continue_job()

        def older(error: CkptError, found: Any) -> None:
            self._age = found[1] or "100000 days"
            continue_job()

        return [
            ways.next_start(continue_job),
            Way("touch the file", r"\btouch\b", touched),
            Way("longer maxFileAge", r"maxFileAge(?:=['\"]([^'\"]+)['\"])?", older),
        ]


class FarValues(Scene):
    """Timestamps of distant years in files of one format, through a job to a table and through a second job that reads it."""

    def __init__(self, site: Site, folder: Path, draw: random.Random, format_: str) -> None:
        self.kind = f"far timestamps, {format_}"
        self._site, self._folder, self._format = site, folder, format_
        self._ntz = draw.random() < 0.4 and format_ != "INT96"
        self._values: list[tuple[int, str | None]] = [(n, text) for n, text in enumerate(draw.sample(FAR, 5))]
        self._values.append((99, None))

    def act(self) -> None:
        inbox = self._folder / "in"
        inbox.mkdir()
        self._write(inbox)
        self._both()

    def _both(self) -> None:
        self._drain("first", self._files)
        self._drain("second", lambda job: job.source("s", DeltaSource(str(self._folder / "first"))))

    def _drain(self, name: str, source: Callable[[ckpt.Job], ckpt.Stream]) -> None:
        job = new_job(self._site, self._folder / f"store-{name}", name)
        source(job).to(DeltaSink(str(self._folder / name)), name="out")
        drained(job)

    def _files(self, job: ckpt.Job) -> ckpt.Stream:
        kind = {"json": "json", "csv": "csv"}.get(self._format, "parquet")
        at = "timestamp_ntz" if self._ntz else "timestamp"
        return job.source("s", FilesSource(str(self._folder / "in"), kind, f"id long, at {at}"))  # type: ignore[arg-type]

    def _write(self, inbox: Path) -> None:
        suffix = "" if self._ntz else "Z"
        shown = [(n, None if text is None else text + suffix) for n, text in self._values]
        if self._format == "json":
            (inbox / "a.json").write_text("".join(json.dumps({"id": n, "at": text}) + "\n" for n, text in shown))
        elif self._format == "csv":
            (inbox / "a.csv").write_text("id,at\n" + "".join(f"{n},{text or ''}\n" for n, text in shown))
        elif self._format == "parquet":
            kind = pa.timestamp("us", tz=None if self._ntz else "UTC")
            table = pa.table(
                {"id": [n for n, _ in shown], "at": pa.array([self._moment(t) for _, t in self._values], kind)}
            )
            pq.write_table(table, inbox / "a.parquet")
        else:
            self._by_spark(inbox)

    def _by_spark(self, inbox: Path) -> None:
        """INT96, as Spark writes it."""
        conf = self._site.spark.conf
        conf.set("spark.sql.parquet.outputTimestampType", "INT96")
        conf.set("spark.sql.parquet.int96RebaseModeInWrite", "CORRECTED")
        try:
            frame = self._site.spark.createDataFrame([(n, t) for n, t in self._values], "id long, at string")
            written = self._folder / "written"
            frame.withColumn("at", F.col("at").cast("timestamp")).coalesce(1).write.parquet(str(written))
        finally:
            conf.unset("spark.sql.parquet.outputTimestampType")
            conf.unset("spark.sql.parquet.int96RebaseModeInWrite")
        for part in written.glob("part-*"):
            shutil.move(part, inbox / "a.parquet")

    def _moment(self, text: str | None) -> datetime | None:
        if text is None:
            return None
        return datetime.fromisoformat(text) if self._ntz else datetime.fromisoformat(text).replace(tzinfo=UTC)

    def wanted(self) -> Rows:
        rows = [(n, _micros(self._moment(text))) for n, text in self._values]
        return Counter((name, *row) for name in ("first", "second") for row in rows)

    def visible(self) -> Rows:
        found: Rows = Counter()
        for name in ("first", "second"):
            found.update((name, n, _micros(at)) for n, at in table_rows(self._folder / name, ("id", "at")))  # type: ignore[arg-type]
        return found

    def ways(self) -> Sequence[Way]:
        return [ways.next_start(self._both)]


class TwiceHour(Scene):
    """Rows merged by a key and a timestamp, which is also the partition, in the hour that occurs twice in the session's zone."""

    def __init__(self, site: Site, folder: Path, draw: random.Random) -> None:
        self.kind = "merge by a timestamp partition in the hour that occurs twice"
        self._site, self._folder = site, folder
        self._epochs = draw.randint(2, 3)
        moments = [TWICE, TWICE + timedelta(hours=1), TWICE + timedelta(hours=2), TWICE - timedelta(hours=1)]
        self._moments = draw.sample(moments, draw.randint(2, 4))
        self._text = draw.random() < 0.4
        """The partition is a string, and one of them is empty."""
        self._rejects = False

    def _values(self) -> list[str]:
        if self._text:
            return ["", " ", "%41", "__HIVE_DEFAULT_PARTITION__", "a"][: len(self._moments) + 1]
        return [moment.strftime("%Y-%m-%dT%H:%M:%SZ") for moment in self._moments]

    def act(self) -> None:
        if self._text:
            self.kind = "merge by a text partition with empty and odd texts"
        self._site.spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        (self._folder / "in").mkdir()
        for epoch in range(self._epochs):
            self._feed(epoch)
            drained(self._job())

    def _feed(self, epoch: int) -> None:
        lines = [json.dumps({"p": value, "id": 1, "n": epoch}) + "\n" for value in self._values()]
        (self._folder / "in" / f"{epoch}.json").write_text("".join(lines))
        self._fed = epoch + 1

    def _job(self) -> ckpt.Job:
        job = new_job(self._site, self._folder / "store")
        kind = "string" if self._text else "timestamp"
        rows = job.source("s", FilesSource(str(self._folder / "in"), "json", f"p {kind}, id long, n long"))
        if self._rejects:
            rows = rows.filter("p NOT IN ('', '__HIVE_DEFAULT_PARTITION__')")
        table = DeltaSink(str(self._folder / "out"), engine="spark", keys=["p", "id"], partition_by=["p"])
        rows.to(table, name="out")
        return job

    def wanted(self) -> Rows:
        """Delta stores an empty string of a partition as null."""
        if not self._text:
            return Counter((_micros(moment), self._epochs - 1) for moment in self._moments)
        gone = ("", "__HIVE_DEFAULT_PARTITION__")
        kept = [value for value in self._values() if not (self._rejects and value in gone)]
        return Counter({(None if value in gone else value, self._epochs - 1): 1 for value in kept})

    def tolerated(self) -> Rows:
        found: Rows = Counter()
        for value in self._values():
            for epoch in range(self._epochs):
                shown = value if self._text else _micros(datetime.fromisoformat(value.replace("Z", "+00:00")))
                found[(shown, epoch)] = found[(None, epoch)] = 1
        return found

    def visible(self) -> Rows:
        rows = table_rows(self._folder / "out", ("p", "n"))
        return Counter((p if self._text else _micros(p), n) for p, n in rows)  # type: ignore[arg-type]

    def ways(self) -> Sequence[Way]:
        def continue_job() -> None:
            drained(self._job())
            for epoch in range(self._fed, self._epochs):
                self._feed(epoch)
                drained(self._job())

        def filtered(error: CkptError, found: Any) -> None:
            self._rejects = True
            continue_job()

        return [
            ways.next_start(continue_job),
            Way("filter the row", r"filter|coalesce|leave .{0,40}out|replace", filtered),
        ]

    def close(self) -> None:
        self._site.spark.conf.set("spark.sql.session.timeZone", "UTC")


def _micros(moment: datetime | None) -> int | None:
    """Since 1970; a local time counts as UTC."""
    if moment is None:
        return None
    since = (moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _modified(site: Site, folder: Path, draw: random.Random, moment: str) -> Scene:
    return OddModification(site, folder, draw, moment)


def _far(site: Site, folder: Path, draw: random.Random, format_: str) -> Scene:
    return FarValues(site, folder, draw, format_)


SCENES: Sequence[Drawn] = [
    *(partial(_modified, moment=moment) for moment in MOMENTS),
    *(partial(_far, format_=format_) for format_ in ("json", "csv", "parquet", "INT96")),
    TwiceHour,
    TwiceHour,
]
