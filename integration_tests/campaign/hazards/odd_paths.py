"""Drawn names of folders, tables, columns and files: a name that a file system and Delta allow works, or an error names it."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt
from integration_tests.campaign.hazards import ways
from integration_tests.campaign.hazards.site import Site, drained, new_job
from integration_tests.campaign.hazards.trials import Drawn
from integration_tests.campaign.hazards.verdicts import Rows, Scene, Way
from spark_ckpt.errors import CkptError

PIECES = (
    "a", "b c", "%20", "%41", "%", "%zz", "\\", "[x]", "{y}", "*", "?", "#", "+", "&", "=", "'", '"', "ü", "名", "é",
    ":", ";", ",", "@", "$", "~", "!", "(", ")", "|", "^", "`", ".", "-", "\u00a0", "😀", "e\u0301",
)  # fmt: skip
COLUMN_PIECES = ("a", "B", ".", "`", " ", ",", "/", "%20", "ü", "名", "-", "'", '"', "$", "#", "1", "_", ":", "😀")
BAD_BYTES = (b"caf\xe9", b"\xff\xfe", b"a\x80b")


def drawn_name(draw: random.Random, pieces: Sequence[str], most: int = 4) -> str:
    """A name with at least one odd piece; neither hidden nor with blanks at its ends."""
    name = "".join(draw.choice(pieces) for _ in range(draw.randint(1, most)))
    return f"n{name}z"


class OddPath(Scene):
    """Store, inbox and table below folders with drawn names; both engines."""

    def __init__(self, site: Site, folder: Path, draw: random.Random, engine: str) -> None:
        self.kind = f"folders, engine {engine}"
        self._site, self._engine, self._folder = site, engine, folder
        self._name = drawn_name(draw, PIECES)
        self._where = draw.choice(("store", "inbox", "table", "all"))
        self._keyed = draw.random() < 0.5
        self._plain = False
        self._rows = [[(f"k{n % 4}", 10 * drain + n) for n in range(draw.randint(1, 6))] for drain in range(2)]
        self._drained = 0

    def _root(self, part: str) -> Path:
        odd = not self._plain and self._where in (part, "all")
        return self._folder / (self._name if odd else "plain")

    def _job(self) -> ckpt.Job:
        job = new_job(self._site, self._root("store") / "store")
        inbox = self._root("inbox") / "in"
        rows = job.source("s", FilesSource(str(inbox), "json", "k string, v long"))
        if self._keyed:
            rows = rows.groupBy("k").agg(outputMode="each row", name="totals", total=ckpt.sum("v"))
        keys = {"keys": ["k"]} if self._engine == "spark" and self._keyed else {}
        rows.to(DeltaSink(str(self._table), engine=self._engine, **keys), name="out")  # type: ignore[arg-type]
        return job

    @property
    def _table(self) -> Path:
        return self._root("table") / "out"

    def act(self) -> None:
        for drain, rows in enumerate(self._rows):
            self._write(drain, rows)
            self._drained = drain + 1
            drained(self._job())

    def _continue_job(self) -> None:
        """Start again; input that has not arrived yet arrives."""
        drained(self._job())
        for drain in range(self._drained, 2):
            self._write(drain, self._rows[drain])
            self._drained = drain + 1
            drained(self._job())

    def _write(self, drain: int, rows: Sequence[tuple[str, int]]) -> None:
        inbox = self._root("inbox") / "in"
        inbox.mkdir(parents=True, exist_ok=True)
        (inbox / f"{drain}.json").write_text("".join(json.dumps({"k": k, "v": v}) + "\n" for k, v in rows))

    def wanted(self) -> Rows:
        done = self._rows[: self._drained]
        if not self._keyed:
            return Counter(row for rows in done for row in rows)
        totals: Counter[str] = Counter()
        found: Rows = Counter()
        for rows in done:
            for k, v in rows:
                totals[k] += v
                if self._engine == "deltalake":
                    found[(k, totals[k])] += 1
        return found if self._engine == "deltalake" else Counter(totals.items())

    def tolerated(self) -> Rows:
        """A merged table may show earlier totals."""
        found: Rows = Counter()
        totals: Counter[str] = Counter()
        for rows in self._rows:
            for k, v in rows:
                totals[k] += v
                found[(k, totals[k])] = 1
        return self.wanted() | found

    def visible(self) -> Rows:
        return delta_rows(self._site, self._table, ("k", "total" if self._keyed else "v"))

    def ways(self) -> Sequence[Way]:
        def renamed(error: CkptError, found: Any) -> None:
            """A plain name, and a job from its beginning: none has run under the odd one."""
            self._plain = True
            for drain in range(self._drained):
                self._write(drain, self._rows[drain])
            drained(self._job())
            self._continue_job()

        return [
            ways.next_start(self._continue_job),
            Way(
                "another name",
                r"rename|another (name|folder|path|place|location)|without (such|these|those|the)|choose",
                renamed,
            ),
        ]


class OddColumn(Scene):
    """A column with a drawn name, as plain data, key of a state, partition, or key of a merge; also read back as a source."""

    def __init__(self, site: Site, folder: Path, draw: random.Random, role: str) -> None:
        self.kind = f"column as {role}"
        self._site, self._folder, self._role = site, folder, role
        self._name = drawn_name(draw, COLUMN_PIECES)
        self._values = [[draw.choice("abc") for _ in range(draw.randint(1, 5))] for _ in range(2)]
        self._drained = 0

    def _job(self) -> ckpt.Job:
        quoted = "`" + self._name.replace("`", "``") + "`"
        job = new_job(self._site, self._folder / "store")
        rows = job.source("s", FilesSource(str(self._folder / "in"), "json", f"{quoted} string, v long"))
        out = str(self._folder / "out")
        if self._role == "key":
            key = quoted if "." in self._name or "`" in self._name else self._name
            rows = rows.groupBy(key).agg(outputMode="each row", name="totals", count=ckpt.count())
        if self._role == "merge key":
            rows.to(DeltaSink(out, engine="spark", keys=[self._name]), name="out")
        else:
            partition = [self._name] if self._role == "partition" else None
            rows.to(DeltaSink(out, partition_by=partition), name="out")
        return job

    def act(self) -> None:
        for drain, values in enumerate(self._values):
            if drain < self._drained:
                continue
            inbox = self._folder / "in"
            inbox.mkdir(exist_ok=True)
            lines = [json.dumps({self._name: value, "v": 10 * drain + n}) + "\n" for n, value in enumerate(values)]
            (inbox / f"{drain}.json").write_text("".join(lines))
            self._drained = drain + 1
            drained(self._job())

    def wanted(self) -> Rows:
        every = [
            (value, 10 * drain + n) for drain in range(self._drained) for n, value in enumerate(self._values[drain])
        ]
        if self._role == "merge key":
            return Counter(dict(every).items())
        if self._role != "key":
            return Counter(every)
        counts: Counter[str] = Counter()
        found: Rows = Counter()
        for value, _ in every:
            counts[value] += 1
            found[(value, counts[value])] += 1
        return found

    def visible(self) -> Rows:
        return delta_rows(self._site, self._folder / "out", (self._name, "count" if self._role == "key" else "v"))

    def ways(self) -> Sequence[Way]:
        def continue_job() -> None:
            drained(self._job())
            self.act()

        def renamed(error: CkptError, found: Any) -> None:
            self._name = "plain"
            self._drained = 0
            for path in ("out", "store", "in"):
                shutil.rmtree(self._folder / path, ignore_errors=True)
            self.act()

        return [
            ways.next_start(continue_job),
            Way(
                "another name", r"rename|another name|choose|select it as|alias|without (such|these|those|the)", renamed
            ),
        ]


class OddFile(Scene):
    """Input files with drawn names, some of them not UTF-8, some CSV with line ends of one CR."""

    def __init__(self, site: Site, folder: Path, draw: random.Random, what: str) -> None:
        self.kind = what
        self._site, self._folder, self._draw, self._what = site, folder, draw, what
        self._csv = what == "CSV with CR line ends"
        self._late = draw.random() < 0.5
        self._rows = [[(f"k{n}", 10 * file + n) for n in range(draw.randint(1, 4))] for file in range(3)]
        self._renamed = False
        self._odd = draw.randrange(3)
        self._there: set[int] = set()

    def _job(self) -> ckpt.Job:
        job = new_job(self._site, self._folder / "store")
        format_ = "csv" if self._csv else "json"
        rows = job.source("s", FilesSource(str(self._folder / "in"), format_, "k string, v long"))  # type: ignore[arg-type]
        rows.to(DeltaSink(str(self._folder / "out")), name="out")
        return job

    def act(self) -> None:
        (self._folder / "in").mkdir()
        first = 1 if self._late else 3
        order = sorted(range(3), key=lambda n: n == self._odd) if self._late else range(3)
        for file in list(order)[:first]:
            self._write(file)
        with suppress(FileNotFoundError):
            drained(self._job())
        if self._late:
            for file in list(order)[first:]:
                self._write(file)
            drained(self._job())

    def _write(self, file: int) -> None:
        rows = self._rows[file]
        self._there.add(file)
        if self._csv:
            end = "\r" if file == self._odd and not self._renamed else "\n"
            text = end.join(["k,v", *(f"{k},{v}" for k, v in rows), ""])
        else:
            text = "".join(json.dumps({"k": k, "v": v}) + "\n" for k, v in rows)
        stem = f"plain-{file}".encode()
        if file == self._odd and not self._csv and not self._renamed:
            stem = self._draw.choice(BAD_BYTES) if "UTF-8" in self._what else drawn_name(self._draw, PIECES).encode()
        path = os.fsencode(self._folder / "in") + b"/" + stem + (b".csv" if self._csv else b".json")
        with open(path, "w", newline="") as out:  # noqa: PTH123 - Path cannot have every name
            out.write(text)

    def wanted(self) -> Rows:
        return Counter(row for rows in self._rows for row in rows)

    def visible(self) -> Rows:
        return delta_rows(self._site, self._folder / "out", ("k", "v"))

    def ways(self) -> Sequence[Way]:
        def continue_job() -> None:
            for file in range(3):
                if file not in self._there:
                    self._write(file)
            drained(self._job())

        def fixed(error: CkptError, found: Any) -> None:
            """The odd file gets a plain name, or readable line ends; files that have not arrived yet arrive."""
            self._renamed = True
            for name in os.listdir(os.fsencode(self._folder / "in")):  # noqa: PTH208 - names as bytes
                if self._csv or not name.startswith(b"plain-"):
                    path = os.fsencode(self._folder / "in") + b"/" + name
                    if self._csv:
                        with open(path, "rb") as file:  # noqa: PTH123
                            content = file.read()
                        if b"\r" not in content:
                            continue
                    os.remove(path)  # noqa: PTH107
            self._write(self._odd)
            for file in range(3):
                if not (self._folder / "in" / f"plain-{file}.{'csv' if self._csv else 'json'}").exists():
                    self._write(file)
            drained(self._job())

        return [
            ways.next_start(continue_job),
            Way(
                "convert or rename the file",
                r"rename|another name|line end|\\n|convert|dos2unix|mac2unix|newline",
                fixed,
            ),
        ]


def delta_rows(site: Site, table: Path, columns: Sequence[str]) -> Rows:
    """Rows by the table's log and files, read without any Delta reader; delta-spark must find as many. A table that exists only
    under another spelling of its path has no rows."""
    log = table / "_delta_log"
    if not log.is_dir():
        return Counter()
    live: dict[str, dict[str, str | None]] = {}
    for path in sorted(log.glob("*.json")):
        for line in path.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                live[unquote(action["add"]["path"])] = action["add"].get("partitionValues") or {}
            elif "remove" in action:
                live.pop(unquote(action["remove"]["path"]), None)
    found: Rows = Counter()
    for name, partition in live.items():
        for row in pq.ParquetFile(str(table / name)).read().to_pylist():
            whole = row | partition
            found[tuple(whole.get(column) for column in columns)] += 1
    site.forget_tables()
    seen = site.spark.read.format("delta").load(str(table)).count()
    assert seen == found.total(), f"delta-spark finds {seen} rows, the table's log has {found.total()}"
    return found


def _of(kind: type[Any], site: Site, folder: Path, draw: random.Random, what: str) -> Scene:
    scene: Scene = kind(site, folder, draw, what)
    return scene


SCENES: Sequence[Drawn] = [
    *(partial(_of, OddPath, what=engine) for engine in ("deltalake", "spark", "deltalake", "spark")),
    *(partial(_of, OddColumn, what=role) for role in ("data", "key", "partition", "merge key")),
    partial(_of, OddFile, what="file names"),
    partial(_of, OddFile, what="file names that are not UTF-8"),
    partial(_of, OddFile, what="CSV with CR line ends"),
]
