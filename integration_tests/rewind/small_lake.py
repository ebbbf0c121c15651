"""Three queries with three tables without a JVM, a history with crashes, and a bug that came with a deployment."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

from deltalake import DeltaTable

from integration_tests.rewind.small_spark import DeltaStream, Died, FileStream, SmallFolder, SmallQuery, SmallTable

NAMES = ("ingest", "dedup", "publish")
TABLES = ("bronze", "silver", "gold")


def _as_they_are(rows: list[int], known: set[int]) -> list[int]:
    return rows


def _turned(rows: list[int], known: set[int]) -> list[int]:
    """The bug."""
    return [-each for each in rows]


def _not_known(rows: list[int], known: set[int]) -> list[int]:
    return sorted(set(rows) - known)


class SmallLake:
    """files -> bronze -> ids that are new -> silver -> gold."""

    names: Sequence[str] = NAMES
    table_names: Sequence[str] = TABLES

    def __init__(self, root: Path, *, broken: bool = False) -> None:
        self.root = root
        self.inbox = root / "inbox"
        self.inbox.mkdir(parents=True, exist_ok=True)
        tables = {name: SmallTable(root / name) for name in self.table_names}
        self.tables = tables
        place = root / "checkpoints"
        bronze, silver, gold = (tables[name] for name in TABLES)
        self.queries = {
            each.name: each
            for each in (
                SmallQuery(
                    "ingest",
                    place / "ingest",
                    FileStream(self.inbox, 1),
                    bronze,
                    _turned if broken else _as_they_are,
                ),
                SmallQuery("dedup", place / "dedup", DeltaStream(bronze, 3), silver, _not_known, state=True),
                SmallQuery("publish", place / "publish", DeltaStream(silver, 1), gold, _as_they_are),
            )
        }

    def declared(self) -> dict[str, object]:
        """Declarations of a user besides the folders."""
        return {}

    @property
    def folders(self) -> list[Path]:
        """Folders of file sinks."""
        return []

    def catch_up(self, draw: Random) -> None:
        """Run queries until the bug reaches the folders of the test."""

    def drop(self, count: int) -> None:
        """Add files; each has ten ids, and three of the previous file."""
        first = len(list(self.inbox.iterdir()))
        for number in range(first, first + count):
            ids = [*range(10 * number + 1, 10 * number + 11), *range(max(10 * number - 2, 1), 10 * number + 1)]
            (self.inbox / f"{number}.json").write_text(json.dumps(ids))

    def settle(self) -> None:
        """Run all queries until they have read all input."""
        while sum(query.run() for query in self.queries.values()):
            pass

    def held(self) -> dict[str, list[int]]:
        """Ids in the tables, as another library reads them."""
        found = {}
        for name in self.table_names:
            there = (self.root / name / "_delta_log").is_dir()
            found[name] = (
                sorted(DeltaTable(str(self.root / name)).to_pyarrow_table().column("id").to_pylist()) if there else []
            )
        return found

    def wanted(self) -> dict[str, list[int]]:
        """Expected ids at the end, from the input alone."""
        rows = [each for path in self.inbox.iterdir() for each in json.loads(path.read_text())]
        return {"bronze": sorted(rows), "silver": sorted(set(rows)), "gold": sorted(set(rows))}

    def moved_to(self, root: Path, *, broken: bool) -> SmallLake:
        """A copy in another place, run by other code. Files that were read keep their path."""
        shutil.copytree(self.root, root, symlinks=True, ignore=shutil.ignore_patterns("inbox"))
        copied = type(self)(root, broken=broken)
        copied.inbox.rmdir()
        copied.inbox.symlink_to(self.inbox)
        copied.inbox = self.inbox
        copied.queries["ingest"].source = FileStream(self.inbox, 1)
        return copied


class ExportingLake(SmallLake):
    """The same, with silver -> files of a file sink -> mirror."""

    names = (*NAMES, "export", "mirror")
    table_names = (*TABLES, "mirrored")

    def __init__(self, root: Path, *, broken: bool = False) -> None:
        super().__init__(root, broken=broken)
        self.exports, place = SmallFolder(root / "exports"), root / "checkpoints"
        silver, mirrored = DeltaStream(self.tables["silver"], 2), self.tables["mirrored"]
        exported = FileStream(self.exports.root, 1)
        self.queries["export"] = SmallQuery("export", place / "export", silver, self.exports, _as_they_are)
        self.queries["mirror"] = SmallQuery("mirror", place / "mirror", exported, mirrored, _as_they_are)

    def declared(self) -> dict[str, object]:
        """Declarations of the folder, if it exists."""
        there = {"folders": [{"path": str(self.exports.root), "written_by": "export"}]}
        return there if self.exports.log.folder.is_dir() else {}

    @property
    def folders(self) -> list[Path]:
        """Its one folder."""
        return [self.exports.root]

    def catch_up(self, draw: Random) -> None:
        """Run the file sink, and in two of three histories its reader."""
        for name in ("dedup", "export", *(["mirror"] if draw.random() < 0.67 else [])):
            self.queries[name].run(draw.randint(2, 6))

    def moved_to(self, root: Path, *, broken: bool) -> SmallLake:
        """Change the full paths of files in logs to those of the copy."""
        copied = super().moved_to(root, broken=broken)
        for log in (root / "exports" / "_spark_metadata", root / "checkpoints" / "mirror" / "sources" / "0"):
            for path in log.glob("*"):
                path.write_text(path.read_text().replace(self.root.as_uri(), root.as_uri()))
        return copied

    def held(self) -> dict[str, list[int]]:
        exported = self.exports.ids() if self.exports.log.folder.is_dir() else []
        return super().held() | {"exported": exported, "listed": self.exports.ids_without_log()}

    def wanted(self) -> dict[str, list[int]]:
        found = super().wanted()
        return found | dict.fromkeys(("mirrored", "exported", "listed"), found["silver"])


def history(root: Path, seed: int, *, steps: int = 12, kind: type[SmallLake] = SmallLake) -> tuple[SmallLake, int]:
    """A lake with a history, and the last batch of `ingest` before the bug. Some batches have begun and not ended."""
    draw = Random(seed)
    lake = kind(root)
    lake.drop(2)
    run_some_steps(lake, draw, draw.randint(steps // 2, steps))
    good = max(int(path.name) for path in (lake.queries["ingest"].folder / "commits").iterdir())
    broken = kind(root, broken=True)
    run_some_steps(broken, draw, draw.randint(2, steps))
    broken.catch_up(draw)
    return broken, good


def run_some_steps(lake: SmallLake, draw: Random, steps: int) -> None:
    """Run queries in a drawn order; some are killed in their batches."""
    lake.drop(1)
    lake.queries["ingest"].run()
    for _ in range(steps):
        lake.drop(draw.choice((0, 1, 1, 2)))
        query = lake.queries[draw.choice(lake.names)]
        death = draw.choice(("", "", "", "offsets", "state", "sink"))
        with suppress(Died):
            query.run(draw.randint(1, 3), death)


def checkpoints(lake: SmallLake) -> list[Path]:
    """Checkpoints of queries that have been started."""
    return [lake.queries[name].folder for name in lake.names if lake.queries[name].folder.is_dir()]
