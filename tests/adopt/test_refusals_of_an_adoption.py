"""A query that cannot be adopted is refused with a typed error before any file is written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql.types import StructType

from spark_ckpt.cli.app import exit_code
from spark_ckpt.errors import (
    AdoptionRefused,
    CheckpointDamaged,
    CheckpointForeign,
    ConfigInvalid,
    EnvironmentUnfit,
    FormatUnknown,
    SourceInvalid,
)
from spark_ckpt.spark_internals.operator_metadata import PANDAS, WORDS
from spark_rewind.adopt import state
from spark_rewind.adopt.plan import AdoptRequest, planned
from tests.adopt.adopt_kit import clicks, operator
from tests.rewind.rewind_kit import WrittenQuery, content_of, unpacked

NAMED = {"sources": ["clicks"], "operators": ["totals"]}


def test_state_that_no_operator_of_a_job_can_have_is_not_given_up(tmp_path, monkeypatch):
    # Inside of transform Spark keeps it as it is.
    world = World(tmp_path)
    schema = StructType().add("key", StructType().add("k", "long")).add("state", StructType().add("k", "long"))
    monkeypatch.setattr(state, "state_rows", lambda *read: SimpleNamespace(schema=schema))
    with pytest.raises(AdoptionRefused, match="operator 'totals'") as refused:
        state.found_state(None, world.plan(), world.query.folder, "totals")
    assert "--spark-operators in place of --operator" in refused.value.hint
    world.request = {"sources": ["clicks"], "spark_operators": True}
    assert world.plan().spark_operators


class World:
    """A query from Kafka with one operator; every case changes one thing."""

    def __init__(self, folder: Path) -> None:
        self.query = clicks(WrittenQuery(folder / "query"), 10, 20, state=True)
        operator(self.query)
        self.request = dict(NAMED)

    def plan(self):
        return planned(AdoptRequest(str(self.query.folder), **self.request))

    def file(self, *names: str) -> Path:
        return self.query.folder.joinpath(*names)


def nothing(world: World) -> None:
    """Unchanged, it can be adopted."""


def an_aggregation(world: World) -> None:
    operator(world.query, "stateStoreSave")


def several_others(world: World) -> None:
    operator(world.query, "dedupe", number=1)
    operator(world.query, "symmetricHashJoin", number=2)


def an_operator_of_the_future(world: World) -> None:
    operator(world.query, "quantumJoin", number=1)


def written_by_spark_3(world: World) -> None:
    world.file("state", "0", "_metadata", "metadata").unlink()


def torn_metadata(world: World) -> None:
    path = world.file("state", "0", "_metadata", "metadata")
    path.write_text(path.read_text()[:40])


def newer_metadata(world: World) -> None:
    path = world.file("state", "0", "_metadata", "metadata")
    path.write_text(path.read_text().replace("v1", "v9", 1))


def a_partition_is_missing(world: World) -> None:
    operator(world.query, partitions=2)


def a_state_file_is_missing(world: World) -> None:
    world.file("state", "0", "0", "1.delta").unlink()


def no_batch_yet(world: World) -> None:
    for name in ("0", "1"):
        world.file("offsets", name).unlink()
        world.file("commits", name).unlink()


def no_checkpoint(world: World) -> None:
    world.file("metadata").unlink()


def a_newer_log(world: World) -> None:
    path = world.file("offsets", "1")
    path.write_text(path.read_text().replace("v1", "v3", 1))


def a_torn_log(world: World) -> None:
    path = world.file("offsets", "1")
    path.write_text(path.read_text()[:50])


def a_watermark_that_is_none(world: World) -> None:
    world.file("commits", "1").write_text('v1\n{"nextBatchWatermarkMs":"noon"}')


def gaps_of_asynchronous_progress(world: World) -> None:
    world.file("commits", "0").unlink()


def only_an_unfinished_batch_is_left(world: World) -> None:
    world.file("offsets", "0").unlink()
    world.file("commits", "0").unlink()
    world.file("commits", "1").unlink()
    world.request["unfinished"] = "again"


def state_of_a_batch_that_is_done_is_not_whole(world: World) -> None:
    world.file("commits", "1").unlink()
    world.file("state", "0", "0", "2.delta").unlink()
    world.request["unfinished"] = "done"


def only_a_commit_would_name_the_states_files(world: World) -> None:
    world.file("commits", "1").unlink()
    path = world.file("state", "0", "0", "2.delta")
    path.rename(path.with_name("2_5d6e9c1a-0000-4000-8000-000000000001.delta"))
    world.request["unfinished"] = "done"


def files_as_a_source(world: World) -> None:
    path = world.file("offsets", "1")
    path.write_text("\n".join([*path.read_text().split("\n")[:2], '{"logOffset":3}']))


def a_source_of_another_kind(world: World) -> None:
    path = world.file("offsets", "1")
    path.write_text("\n".join([*path.read_text().split("\n")[:2], "42"]))


def an_offset_that_stands_for_an_end(world: World) -> None:
    path = world.file("offsets", "1")
    path.write_text(path.read_text().replace("20", "-1"))


def a_name_is_missing(world: World) -> None:
    world.request["sources"] = []


def an_operators_name_is_missing(world: World) -> None:
    world.request["operators"] = []


def a_number_that_is_not_there(world: World) -> None:
    world.request["sources"] = ["clicks=1"]


def a_name_that_is_none(world: World) -> None:
    world.request["sources"] = ["../clicks"]


def an_object_store(world: World) -> None:
    world.query.folder = "s3://bucket/query"


CASES = {
    an_aggregation: (AdoptionRefused, r"operator 0 is stateStoreSave \(an aggregation\)"),
    several_others: (
        AdoptionRefused,
        r"dedupe \(dropDuplicates\), operator 2 is symmetricHashJoin \(a join of two streams\)",
    ),
    an_operator_of_the_future: (AdoptionRefused, "operator 1 is quantumJoin"),
    written_by_spark_3: (AdoptionRefused, "written by Spark 3"),
    torn_metadata: (CheckpointDamaged, "does not say what the operator is"),
    newer_metadata: (FormatUnknown, "format 'v9'"),
    a_partition_is_missing: (CheckpointDamaged, "partition 1 of the state of operator 0 is missing"),
    a_state_file_is_missing: (CheckpointDamaged, "version 1 is missing"),
    no_batch_yet: (AdoptionRefused, "has not begun a batch"),
    no_checkpoint: (CheckpointForeign, "no file `metadata`"),
    a_newer_log: (FormatUnknown, "format 'v3'"),
    a_torn_log: (CheckpointDamaged, "not JSON"),
    a_watermark_that_is_none: (CheckpointDamaged, "watermark is no time"),
    gaps_of_asynchronous_progress: (CheckpointDamaged, "batch 0 is not committed, and later ones were begun"),
    only_an_unfinished_batch_is_left: (CheckpointDamaged, "batch 0 is missing in the log"),
    state_of_a_batch_that_is_done_is_not_whole: (AdoptionRefused, "after batch 1 may be incomplete"),
    only_a_commit_would_name_the_states_files: (
        AdoptionRefused,
        "which of the state's files count would be in its commit",
    ),
    files_as_a_source: (AdoptionRefused, "source 0 reads files"),
    a_source_of_another_kind: (AdoptionRefused, "source 0 is of a kind"),
    an_offset_that_stands_for_an_end: (SourceInvalid, "is at -1, which is no offset"),
    a_name_is_missing: (ConfigInvalid, "source 0 of the query has no name"),
    an_operators_name_is_missing: (ConfigInvalid, "operator 0 of the query has no name"),
    a_number_that_is_not_there: (ConfigInvalid, "has no source 1"),
    a_name_that_is_none: (ConfigInvalid, "is no source name"),
    an_object_store: (ConfigInvalid, "read from local or mounted folders"),
}


def test_an_undamaged_query_is_adopted(tmp_path):
    taking = World(tmp_path).plan()
    assert (taking.batch, taking.operators["totals"].name) == (1, PANDAS)


@pytest.mark.parametrize("damage", CASES, ids=lambda damage: damage.__name__)
def test_each_kind_of_damage_raises_its_error_and_changes_no_file(tmp_path, damage):
    world = World(tmp_path)
    damage(world)
    before = content_of(tmp_path)
    kind, message = CASES[damage]
    with pytest.raises(kind, match=message) as refused:
        world.plan()
    # An adoption has one query, so that there is none to leave out.
    assert ("leave this query out" in refused.value.hint) <= ("in place of an adoption" in refused.value.hint)
    assert refused.value.hint
    assert content_of(tmp_path) == before


@pytest.mark.parametrize("damage", CASES, ids=lambda damage: damage.__name__)
def test_the_command_reports_the_error_without_a_traceback_and_makes_no_store(tmp_path, capsys, damage):
    world = World(tmp_path)
    damage(world)
    request = world.request
    arguments = ["adopt", str(world.query.folder), str(tmp_path / "store"), "--job", "orders"]
    arguments += [part for name in request["sources"] for part in ("--source", name)]
    arguments += [part for name in request["operators"] for part in ("--operator", name)]
    arguments += ["--unfinished", request["unfinished"]] if "unfinished" in request else []
    code = exit_code(arguments)
    message = capsys.readouterr()
    assert (code, message.out) == (CASES[damage][0].exit_code, "")
    assert message.err.startswith(f"[{CASES[damage][0].condition}]")
    assert "Traceback" not in message.err
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("name", ["hdfs_snap", "rocks_v2"])
def test_an_aggregation_in_sparks_metadata_is_named(tmp_path, name):
    folder = unpacked(tmp_path) / "ckpt" / name
    with pytest.raises(AdoptionRefused, match="stateStoreSave"):
        planned(AdoptRequest(str(folder), **NAMED))


def test_without_a_jdk_state_is_refused_before_a_store_is_made(tmp_path, capsys, monkeypatch):
    world = World(tmp_path)

    def none() -> None:
        raise EnvironmentUnfit("no JDK was found", hint="install a JDK 17")

    monkeypatch.setattr("spark_ckpt.jars.find_java", none)
    arguments = ["adopt", str(world.query.folder), str(tmp_path / "store"), "--job", "orders"]
    assert exit_code([*arguments, "--source", "clicks", "--operator", "totals"]) == 10
    assert "no JDK" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_every_other_operator_has_a_public_name():
    assert PANDAS not in WORDS
    assert all(words and words != name for name, words in WORDS.items())


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (["clicks"], "which source is it"),
        (["a=0", "b=0"], "has two names"),
        (["a=0", "a=1"], "two sources are named"),
        (["a=0"], "source 1 of the query has no name"),
    ],
)
def test_each_of_several_sources_needs_its_own_name(tmp_path, sources, message):
    query = WrittenQuery(tmp_path / "query")
    query.batch({"clicks": {"0": 1}}, {"orders": {"0": 2}})
    with pytest.raises(ConfigInvalid, match=message) as refused:
        planned(AdoptRequest(str(query.folder), sources))
    if "two" not in message:
        assert refused.value.context["source 1"] == "kafka, orders/0 at 2"
        assert refused.value.hint.endswith("--source NAME=0 --source NAME=1")
