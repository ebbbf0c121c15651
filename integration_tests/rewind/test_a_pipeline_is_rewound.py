"""A real declarative pipeline is rewound to before a bug between two triggered runs: its tables and flows agree afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from deltalake import DeltaTable

from integration_tests.spark import SMALL, SMALL_JAVA
from spark_ckpt import connectors
from spark_ckpt.spark_session.class_archive import DRIVER_OPTIONS
from spark_rewind.applying import ApplySettings, apply
from spark_rewind.plan import RewindPlan
from spark_rewind.planning import RewindRequest, plan_rewind

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("triggered.py")
FIRST_S = 1_700_000_000
FLOWS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()
dp.create_streaming_table("bronze")


@dp.append_flow(target="bronze", name="files")
def files():
    read = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json({inbox!r})
    return read.dropDuplicates(["id"]).select((F.col("id") * {sign}).alias("id"))


@dp.table
def silver():
    return spark.readStream.table("bronze").select("id", (F.col("id") * 2).alias("twice"))
"""


def ids_of_file(number: int) -> list[int]:
    """Ten new ids, and three of the previous file."""
    return [*range(10 * number, 10 * number + 10), *range(max(10 * number - 3, 0), 10 * number)]


class Pipeline:
    """The same pipeline in two versions, with and without the bug."""

    def __init__(self, root: Path) -> None:
        self.root, self.inbox = root, root / "inbox"
        self.inbox.mkdir()
        self._configure()
        self.good, self.bad = (self._specified(name, sign) for name, sign in (("good", 1), ("bad", -1)))

    def _configure(self) -> None:
        """Settings of the cluster's administrator."""
        delta = [connectors.named("delta")]
        jars = ",".join(map(str, connectors.jar_paths(delta)))
        conf = (
            SMALL
            | connectors.spark_settings(delta)
            | {
                "spark.jars": jars,
                "spark.sql.warehouse.dir": str(self.root / "warehouse"),
                "spark.sql.sources.default": "delta",  # a table's own format would be a property, which Delta cannot set again
                "spark.databricks.delta.snapshotPartitions": "1",
                DRIVER_OPTIONS: SMALL_JAVA,
            }
        )
        (self.root / "conf").mkdir()
        lines = [f"{key} {value}\n" for key, value in conf.items()]
        (self.root / "conf" / "spark-defaults.conf").write_text("".join(lines))

    def _specified(self, name: str, sign: int) -> Path:
        folder = self.root / name
        (folder / "flows").mkdir(parents=True)
        (folder / "flows" / "flows.py").write_text(FLOWS.format(inbox=str(self.inbox), sign=sign))
        spec = {
            "name": "lake",
            "storage": (self.root / "storage").as_uri(),
            "configuration": {"spark.sql.shuffle.partitions": "2"},
            "libraries": [{"glob": {"include": "flows/**"}}],
        }
        path = folder / "spark-pipeline.yml"
        path.write_text(yaml.safe_dump(spec))
        return path

    def arrive(self, *numbers: int) -> None:
        for number in numbers:
            path = self.inbox / f".{number}.json"
            path.write_text("".join(json.dumps({"id": each}) + "\n" for each in ids_of_file(number)))
            os.utime(path, (FIRST_S + number,) * 2)
            path.rename(self.inbox / f"{number}.json")

    def planned(self, to: str) -> RewindPlan:
        return plan_rewind(RewindRequest([str(self.root / "storage")], to, [str(self.root / "warehouse")]), 0)

    def held(self) -> Mapping[str, list[int]]:
        columns = {"bronze": "id", "silver": "twice"}
        tables = {name: DeltaTable(str(self.root / "warehouse" / name)).to_pyarrow_table() for name in columns}
        return {name: sorted(table.column(columns[name]).to_pylist()) for name, table in tables.items()}


@contextmanager
def application(root: Path) -> Iterator[Callable[[Path], None]]:
    """An application that runs a pipeline once for each specification it receives."""
    environment = os.environ | {
        "SPARK_TESTING": "1",  # lets it use a free port
        "SPARK_CONF_DIR": str(root / "conf"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "connectors")]),
    }
    with (root / "log").open("w+") as log:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
        process = subprocess.Popen([sys.executable, str(PROGRAM)], cwd=root, env=environment, text=True, **pipes)

        def run(spec: Path) -> None:
            process.stdin.write(f"{spec}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n", (root / "log").read_text()[-5000:]

        with process:
            yield run
            process.stdin.close()
            process.wait(60)


def wanted(sign_of: Mapping[int, int]) -> Mapping[str, list[int]]:
    known: set[int] = set()
    bronze = []
    for number, sign in sign_of.items():
        bronze += [sign * each for each in ids_of_file(number) if each not in known]
        known |= set(ids_of_file(number))
    return {"bronze": sorted(bronze), "silver": sorted(2 * each for each in bronze)}


@pytest.mark.long
def test_after_a_rewind_tables_and_flows_are_those_of_runs_that_never_had_the_bug(tmp_path):
    pipeline = Pipeline(tmp_path)
    with application(tmp_path) as run:
        pipeline.arrive(0, 1, 2)
        run(pipeline.good)
        pipeline.arrive(3, 4)
        run(pipeline.bad)
        assert pipeline.held() == wanted({0: 1, 1: 1, 2: 1, 3: -1, 4: -1}), "the bug is visible"

        plan = pipeline.planned("bronze/files@2")
        assert {each.name: (each.newest, each.batch) for each in plan.queries}["bronze/files"] == (4, 2)
        apply(plan, ApplySettings(lambda: None, 1_700_000_000_000, "spark-ckpt/test", ["silver/silver"]))
        assert pipeline.held() == wanted(dict.fromkeys(range(3), 1))

        pipeline.arrive(5)
        run(pipeline.good)
        assert pipeline.held() == wanted(dict.fromkeys(range(6), 1))
