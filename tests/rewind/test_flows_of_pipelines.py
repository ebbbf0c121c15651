"""Flows of declarative pipelines are found below a storage root, named readably, and planned together with plain queries."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest
from rewind_kit import WrittenQuery, WrittenTable, planned, query_of, table_of

from spark_ckpt.errors import CheckpointForeign, ConfigInvalid
from spark_rewind.applying import ApplySettings, apply
from spark_rewind.checkpoint import read_checkpoint
from spark_rewind.pinning import PinRequest, take_pin
from spark_rewind.places import find_places
from spark_rewind.planning import RewindRequest, plan_rewind


def flow(root: Path, table: str, name: str, version: int = 0) -> WrittenQuery:
    return WrittenQuery(root / "_checkpoints" / table / name / str(version))


class Lake:
    """One pipeline writes bronze and silver, another one reads silver, a plain query reads gold."""

    def __init__(self, folder: Path, table: str = "spark_catalog/default/{}") -> None:
        self.roots = [folder / "lake", folder / "mart"]
        self.files = flow(self.roots[0], table.format("bronze"), "files")
        self.silver = flow(self.roots[0], table.format("silver"), "silver")
        self.gold = flow(self.roots[1], table.format("gold"), "gold")
        self.plain = WrittenQuery(folder / "checkpoints" / "report")
        self.tables = [WrittenTable(folder / "warehouse" / name) for name in ("bronze", "silver", "gold")]
        for number in range(4):
            before: object = {"logOffset": number}
            for query, written in zip((self.files, self.silver, self.gold), self.tables, strict=True):
                query.batch(before, state=True)
                written.version((query.query, number))
                before = written.at(number + 1)
            self.plain.batch(before)
        self.folders = [*self.roots, self.plain.folder]

    def plan(self, to: str):
        return planned(self.folders, to, [self.tables[0].root.parent])


@pytest.mark.parametrize("table", ["spark_catalog/default/{}", "default/{}", "{}"])
def test_flows_of_several_pipelines_and_a_plain_query_roll_back_together(tmp_path, table):
    lake = Lake(tmp_path, table)
    plan = lake.plan("bronze/files@1")
    assert [(each.name, each.batch) for each in plan.queries] == [
        ("bronze/files", 1),
        ("silver/silver", 1),
        ("gold/gold", 1),
        ("report", 1),
    ]
    assert [table_of(plan, each.root).version for each in lake.tables] == [1, 1, 1]
    assert query_of(plan, "silver/silver").folder == str(lake.silver.folder)


def test_the_newest_version_of_a_flow_counts_by_number(tmp_path):
    lake = Lake(tmp_path)
    for version in (9, 10):
        old = lake.roots[0] / "_checkpoints" / "spark_catalog" / "default" / "bronze" / "files"
        new = WrittenQuery(old / str(version))
        new.batch({"logOffset": 0}, at_ms=1_800_000_000_000 + version)
    plan = lake.plan("silver@3")
    assert query_of(plan, "bronze/files").query == new.query
    assert query_of(plan, "bronze/files").folder.endswith("/10")


def test_a_flow_without_a_run_since_its_reset_is_left_out_with_a_note(tmp_path):
    lake = Lake(tmp_path)
    (lake.gold.folder.parent / "1").mkdir()
    (lake.roots[1] / "_checkpoints" / "other" / "also" / "0").mkdir(parents=True)
    shutil.copytree(lake.plain.folder, lake.roots[1] / "_checkpoints" / "more" / "flow" / "0")
    lake.folders.pop()
    plan = lake.plan("bronze/files@1")
    assert [each.name for each in plan.queries] == ["bronze/files", "silver/silver", "more/flow"]
    assert [note.partition(" of ")[0] for note in plan.notes if "has not run since" in note] == [
        "flow other/also",
        "flow spark_catalog/default/gold/gold",
    ]


def test_names_are_as_short_as_unique_and_a_shorter_one_is_refused_as_ambiguous(tmp_path):
    lake = Lake(tmp_path)
    flow(lake.roots[0], "spark_catalog/staging/bronze", "files").batch({"logOffset": 0})
    flow(lake.roots[1], "spark_catalog/default/bronze", "files").batch({"logOffset": 0})
    plan = lake.plan("gold@2")
    assert [each.name for each in plan.queries] == [
        "lake/spark_catalog/default/bronze/files",
        "silver/silver",
        "staging/bronze/files",
        "mart/spark_catalog/default/bronze/files",
        "gold/gold",
        "report",
    ]
    with pytest.raises(ConfigInvalid, match="'bronze/files' may be any of 3") as raised:
        lake.plan("bronze/files@1")
    assert "staging/bronze/files" in raised.value.hint


def test_a_table_or_database_with_a_number_as_its_name_is_no_version(tmp_path):
    query = flow(tmp_path / "root", "0/7", "f", 3)
    [(name, folder)] = find_places([tmp_path / "root"]).named.items()
    assert (name, folder) == ("7/f", query.folder)


def test_a_storage_root_and_a_flow_of_it_are_one_query_named_twice(tmp_path):
    lake = Lake(tmp_path)
    lake.folders.append(lake.gold.folder)
    with pytest.raises(ConfigInvalid, match="was named twice"):
        lake.plan("gold@1")


def test_a_root_without_flows_is_refused(tmp_path):
    (tmp_path / "_checkpoints" / "bronze").mkdir(parents=True)
    with pytest.raises(CheckpointForeign, match="holds no flow of a declarative pipeline"):
        planned([tmp_path], "x@1")


def test_a_plain_checkpoint_inside_of_a_table_stays_one(tmp_path):
    """`TABLE/_checkpoints/NAME` is a common place for the checkpoint of a table's writer."""
    table = WrittenTable(tmp_path / "gold")
    query = WrittenQuery(table.root / "_checkpoints" / "totals")
    query.batch({"logOffset": 0})
    table.version((query.query, 0))
    plan = planned([query.folder], "totals@0")
    assert [(each.name, each.stays) for each in plan.queries] == [("totals", True)]
    assert len(plan.tables) == 1


# -- written by Spark --------------------------------------------------------------------------------------------------------

MADE_BY_SPARK = Path(__file__).parent / "pipelines_by_spark_4_2.zip"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Folders `storage` and `warehouse` of three and two triggered runs of two pipelines: Spark 4.2.0, Delta 4.4.0.

    lake: files with a state -> bronze -> silver; mart: silver -> gold. A path in the texts was changed, checksums were left out.
    """
    with zipfile.ZipFile(MADE_BY_SPARK) as archive:
        archive.extractall(tmp_path)
    return tmp_path


def of_spark(made: Path, to: str, **more: object):
    folders = [str(made / "storage" / name) for name in ("lake", "mart")]
    return plan_rewind(RewindRequest(folders, to, [str(made / "warehouse")], **more), 0)


def test_flows_that_spark_ran_are_found_and_roll_back_together(made):
    plan = of_spark(made, "bronze/files@3")
    assert [(each.name, each.newest, each.batch, each.state_version) for each in plan.queries] == [
        ("bronze/files", 6, 3, 4),
        ("silver/silver", 5, 2, None),
        ("gold/gold", 3, 2, None),
    ]
    assert {Path(each.path).name: (each.version, each.written_by, each.read_by) for each in plan.tables} == {
        "bronze": (5, ["bronze/files"], ["silver/silver"]),
        "silver": (4, ["silver/silver"], ["gold/gold"]),
        "gold": (4, ["gold/gold"], []),
    }


def test_flows_that_spark_ran_are_pinned(made):
    folders = [str(made / "storage" / name) for name in ("lake", "mart")]
    taken = take_pin(PinRequest(RewindRequest(folders, "", [str(made / "warehouse")]), made / "pins", "rested"), 0)
    assert taken.kept.point is not None
    assert [(each.name, each.batch) for each in taken.kept.point.queries] == [
        ("bronze/files", 6),
        ("silver/silver", 5),
        ("gold/gold", 3),
    ]
    copy = read_checkpoint(taken.kept.folder / "queries" / "0", "copy")
    assert [sorted(each.read()) for each in copy.operators] == [[0, 1]]
    assert copy.state_gone(copy.batches[-1]) is None
    assert of_spark(made, "rested", pins=made / "pins").target.kind == "point"


def test_flows_that_spark_ran_are_rolled_back_and_found_again(made):
    """The old checkpoint next to a flow's versions is no version, neither for Spark nor for a plan."""
    plan = of_spark(made, "bronze/files@1")
    everybody = [each.name for each in plan.queries]
    apply(plan, ApplySettings(lambda: None, 1_800_000_000_000, "spark-ckpt/test", everybody))
    flow_folder = made / "storage" / "lake" / "_checkpoints" / "spark_catalog" / "default" / "bronze" / "files"
    assert any("before-rewind" in each.name for each in flow_folder.iterdir())
    again = of_spark(made, "bronze/files@1")
    assert [(each.name, each.newest, each.stays) for each in again.queries] == [
        (each.name, each.batch if each.batch != -1 else None, True) for each in plan.queries
    ]
    assert all(each.stays for each in again.tables)
