"""Connections that no checkpoint names are declared; if only times bound them, the line is safe and may be older than needed."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest
from rewind_kit import BATCH_MS, WrittenQuery, WrittenTable, began, planned, query_of, table_of

from spark_ckpt.errors import CheckpointForeign, ConfigInvalid, RewindOutOfReach
from spark_rewind.checkpoint import Batch, QueryCheckpoint
from spark_rewind.connections import through_folder
from spark_rewind.declared import read_declared
from spark_rewind.positions import FilesPosition
from spark_rewind.sink_logs import SinkLog
from spark_rewind.source_files import FileLog


class FakeBroker:
    """A topic of one partition: timestamps by offset."""

    def __init__(self, stamps: list[int], earliest: int = 0) -> None:
        self.stamps = stamps
        self.kept = earliest

    def earliest(self, topic: str) -> Mapping[int, int]:
        return {0: self.kept}

    def ends(self, topic: str) -> Mapping[int, int]:
        return {0: len(self.stamps)}

    def first_at(self, topic: str, at_ms: int) -> Mapping[int, int]:
        found = next((offset for offset, stamp in enumerate(self.stamps) if stamp >= at_ms), None)
        return {} if found is None else {0: found}


TOPIC = {"topics": [{"topic": "orders", "written_by": ["writer"]}]}


class Topic:
    """`writer` sends ten records one second after each batch begins; `reader` has read them all 4 s later."""

    def __init__(self, folder, batches: int = 5) -> None:
        self.writer, self.reader = WrittenQuery(folder / "writer"), WrittenQuery(folder / "reader")
        self.stamps: list[int] = []
        for number in range(batches):
            self.writer.batch(number)
            self.stamps += [began(number, 1000 + each) for each in range(10)]
            self.reader.batch({"orders": {"0": len(self.stamps)}}, at_ms=began(number, 5000))

    def plan(self, to: str, broker=None):
        return planned([self.writer.folder, self.reader.folder], to, declared=TOPIC, broker=broker)


def test_the_reader_of_a_topic_rolls_back_with_its_writer(tmp_path):
    plan = Topic(tmp_path).plan("writer@2")
    reader = query_of(plan, "reader")
    assert reader.batch == 2
    assert reader.reasons[-1].sentence == (
        "reader rolls back from batch 4 to batch 2: it has read offsets 30 to 49 of topic orders, partition 0, "
        "which writer may have written after batch 2"
    )
    assert not reader.reasons[-1].exact


def test_without_a_broker_the_public_range_is_bounded_by_readers(tmp_path):
    [public] = Topic(tmp_path).plan("writer@2").public
    assert (public.first, public.last, public.known_last, public.tight) == (30, None, 49, False)


def test_with_a_broker_the_public_range_is_exact(tmp_path):
    world = Topic(tmp_path)
    world.stamps += [began(5, each) for each in range(7)]
    [public] = world.plan("writer@2", FakeBroker(world.stamps)).public
    assert (public.first, public.last, public.known_last, public.tight) == (30, 56, 49, True)


def test_a_broker_lets_a_reader_keep_more_batches(tmp_path):
    """The times of the reader's batches alone do not prove that it read no record of the writer's batch 3."""
    writer, reader = WrittenQuery(tmp_path / "writer"), WrittenQuery(tmp_path / "reader")
    for number in range(4):
        writer.batch(number)
    reader.batch({"orders": {"0": 10}}, at_ms=began(0, 5000))
    reader.batch({"orders": {"0": 30}}, at_ms=began(3, 500))  # batch 3 began, its first record came later
    stamps = [began(number, 1000 + each) for number in range(4) for each in range(10)]
    folders = [writer.folder, reader.folder]
    assert query_of(planned(folders, "writer@2", declared=TOPIC), "reader").batch == 0
    assert query_of(planned(folders, "writer@2", declared=TOPIC, broker=FakeBroker(stamps)), "reader").stays


def test_a_declared_clock_skew_makes_the_line_older(tmp_path):
    world = Topic(tmp_path)
    declared = TOPIC | {"clock_skew_ms": 8000}
    plan = planned([world.writer.folder, world.reader.folder], "writer@2", declared=declared)
    assert query_of(plan, "reader").batch == 1


def test_a_reader_restarts_from_its_start_only_if_the_topic_retains_it(tmp_path):
    """Kafka's source stores its initial offsets after a zero byte."""
    world = Topic(tmp_path)
    kept = world.reader.folder / "sources" / "0"
    kept.mkdir(parents=True)
    (kept / "0").write_text('\0v1\n{"orders":{"0":7}}')
    assert query_of(world.plan("2023-11-14T22:13:20Z", FakeBroker(world.stamps, earliest=7)), "reader").batch == -1
    with pytest.raises(RewindOutOfReach):
        world.plan("2023-11-14T22:13:20Z", FakeBroker(world.stamps, earliest=8))


def test_retention_of_a_topic_limits_the_reachable_points(tmp_path):
    world = Topic(tmp_path)
    plan = world.plan("reader@3", FakeBroker(world.stamps, earliest=35))
    assert query_of(plan, "reader").batch == 3
    with pytest.raises(RewindOutOfReach, match="nothing at or before reader@2") as raised:
        world.plan("reader@2", FakeBroker(world.stamps, earliest=35))
    assert "retention has left 35 and later" in raised.value.context["gone"]


def test_a_partition_added_after_a_point_limits_it_too(tmp_path):
    """Spark reads such a partition from offset 0 on. Of a partition that the reader does not have, nothing was read."""
    reader = WrittenQuery(tmp_path / "reader")
    for ends in ({"0": 10}, {"0": 20, "1": 5}, {"0": 30, "1": 15}):
        reader.batch({"orders": ends})
    broker = FakeBroker([])
    kept = {0: 0, 1: 5, 2: 99}
    broker.earliest = lambda topic: kept
    assert query_of(planned([reader.folder], "reader@1", broker=broker), "reader").batch == 1
    with pytest.raises(RewindOutOfReach) as raised:
        planned([reader.folder], "reader@0", broker=broker)
    assert "partition 1: it would read offset 0, retention has left 5 and later" in raised.value.context["gone"]
    kept[1] = 0
    assert query_of(planned([reader.folder], "reader@0", broker=broker), "reader").batch == 0


@pytest.mark.parametrize("asked", [False, True], ids=["readers only", "broker"])
def test_no_reader_keeps_a_record_of_an_undone_batch(tmp_path, asked):
    """With random sends and reads, no reader keeps an undone record, by the facts of the history."""
    for seed in range(60):
        folder, draw = tmp_path / str(seed), Random(seed)
        writer, reader = WrittenQuery(folder / "writer"), WrittenQuery(folder / "reader")
        clock, sent, positions = 1_000, [], []
        batches = draw.randint(2, 6)
        while writer.batches < batches:
            clock += draw.randint(1, 40)
            if draw.random() < 0.5:
                number = writer.batch(writer.batches, at_ms=clock)
                for _ in range(draw.randint(0, 4)):
                    clock += draw.randint(1, 9)
                    sent.append((clock, number))
            else:
                positions.append(len(sent))
                clock += draw.randint(1, 5)
                reader.batch({"orders": {"0": len(sent)}}, at_ms=clock)
        if not positions:
            continue
        line = draw.randint(0, batches - 2)
        broker = FakeBroker([stamp for stamp, _ in sent]) if asked else None
        plan = planned([writer.folder, reader.folder], f"writer@{line}", declared=TOPIC, broker=broker)
        at = query_of(plan, "reader")
        known = positions[-1] if at.stays else 0 if at.batch in (None, -1) else positions[at.batch]
        undone = [offset for offset, (_, batch) in enumerate(sent) if batch > line]
        assert [offset for offset in undone if offset < known] == [], seed
        assert all(any(each.first <= offset for each in plan.public) for offset in undone), seed
        if asked:
            nearest = bisect_left(positions, (undone or [len(sent)])[0] + 1) - 1
            assert at.stays or at.batch == nearest, seed  # with the broker the line is not only safe, but the nearest


def test_an_undeclared_topic_is_noted(tmp_path):
    world = Topic(tmp_path)
    plan = planned([world.writer.folder, world.reader.folder], "writer@2")
    assert query_of(plan, "reader").stays
    assert any(
        "topic orders: reader reads it. If one of these queries writes it, declare that" in each for each in plan.notes
    )
    assert any("writer: its output is not known" in each for each in plan.notes)


def test_an_unread_topic_is_noted_as_public_too(tmp_path):
    world = Topic(tmp_path)
    alone = [world.writer.folder]
    plan = planned(alone, "writer@2", declared=TOPIC)
    assert plan.public == []
    assert any("topic orders: records of writer since its batch 3 are public" in each for each in plan.notes)
    [public] = planned(alone, "writer@2", declared=TOPIC, broker=FakeBroker(world.stamps)).public
    assert (public.first, public.last, public.known_last) == (30, 49, None)


# -- tables written in foreachBatch --------------------------------------------------------------------------------------


def world_of_a_table(folder, app: str | None):
    query, table = WrittenQuery(folder / "q"), WrittenTable(folder / "t")
    for number in range(5):
        query.batch(number)
        writers = [(app, number)] if app else []
        table.version(*writers, at_ms=began(number, 2000))
    return query, table


def test_a_batch_that_names_itself_under_another_name_is_found(tmp_path):
    query, table = world_of_a_table(tmp_path, "nightly")
    declared = {"tables": [{"path": str(table.root), "written_by": [{"query": "q", "app_id": "nightly"}]}]}
    assert table_of(planned([query.folder], "q@2", declared=declared), table.root).version == 2
    assert query_of(planned([query.folder], "t@1", declared=declared), "q").batch == 1


def test_a_table_without_transactions_is_bounded_by_time(tmp_path):
    query, table = world_of_a_table(tmp_path, None)
    declared = {"tables": [{"path": str(table.root), "written_by": [{"query": "q"}]}]}
    plan = planned([query.folder], "q@2", declared=declared)
    assert (table_of(plan, table.root).version, query_of(plan, "q").batch) == (2, 2)
    back = planned([query.folder], "t@1", declared=declared)
    assert query_of(back, "q").batch == 1
    assert not query_of(back, "q").reasons[-1].exact


def test_a_table_bounded_by_time_holds_no_undone_batch_and_lacks_no_kept_one(tmp_path):
    """Random batches of several versions each, with commits of other writers between: judged by each version's writer."""
    reached = 0
    for seed in range(80):
        draw, clock = Random(seed), 1_000_000
        query, table = WrittenQuery(tmp_path / str(seed) / "q"), WrittenTable(tmp_path / str(seed) / "t")
        owners: list[int | None] = []
        for _ in range(draw.randint(2, 6)):
            clock += draw.randint(1, 20)
            number = query.batch(0, commit=False, at_ms=clock)
            for _ in range(draw.randint(0, 2)):
                clock += draw.randint(1, 20)
                owners.append(number if draw.random() < 0.8 else None)
                table.version(at_ms=clock)
            clock += draw.randint(1, 20)
            query.commit(number, clock)
        if len(owners) < 2:
            continue
        declared = {"tables": [{"path": str(table.root), "written_by": [{"query": "q"}]}]}
        to = f"q@{draw.randrange(query.batches)}" if draw.random() < 0.5 else f"t@{draw.randrange(len(owners))}"
        try:
            plan = planned([query.folder], to, declared=declared)
        except RewindOutOfReach:
            continue
        at, version = query_of(plan, "q"), table_of(plan, table.root).version
        last = query.batches - 1 if at.stays or at.batch is None else at.batch
        kept, gone = owners[: version + 1], owners[version + 1 :]
        assert [each for each in kept if each is not None and each > last] == [], seed
        assert [each for each in gone if each is not None and each <= last] == [], seed
        reached += last >= 0
    assert reached > 40


# -- folders and other edges ----------------------------------------------------------------------------------------------


def test_the_reader_of_a_sinks_files_rolls_back_with_it(tmp_path):
    writer, reader = WrittenQuery(tmp_path / "writer"), WrittenQuery(tmp_path / "reader")
    log = tmp_path / "out" / "_spark_metadata"
    log.mkdir(parents=True)
    taken = reader.folder / "sources" / "0"
    taken.mkdir(parents=True)
    for number in range(4):
        writer.batch(number)
        file = tmp_path / "out" / f"part-{number}.json"
        file.write_text("rows")
        entry = {"path": file.as_uri(), "size": 4, "action": "add"}
        (log / str(number)).write_text(f"v1\n{json.dumps(entry)}")
        (taken / str(number)).write_text(
            f"v1\n{json.dumps({'path': file.as_uri(), 'timestamp': 0, 'batchId': number})}"
        )
        reader.batch({"logOffset": number})
    folders = [writer.folder, reader.folder]
    declared = {"folders": [{"path": str(tmp_path / "out"), "written_by": "writer"}]}
    plan = planned(folders, "writer@1", declared=declared)
    assert query_of(plan, "reader").batch == 1
    assert query_of(plan, "reader").reasons[-1].exact
    assert (plan.folders[0].batch, plan.folders[0].files_gone, plan.folders[0].read_by) == (1, 2, ["reader"])


def test_each_file_of_a_reader_is_looked_up_once_and_each_point_has_its_newest_batch():
    draw, files, batches = Random(7), 40, 12

    class Counted(dict[str, int]):
        def items(self):
            walks.append(1)
            return super().items()

    for _ in range(20):
        walks: list[int] = []
        entries = {f"file:///out/part-{number}": draw.randrange(batches) for number in range(files)}
        written = SinkLog(Path("/out"), {f"/out/part-{number}": draw.randrange(50) for number in range(0, files, 3)})
        ends = [Batch(each, each, each, {"0": FilesPosition(each)}, None) for each in range(batches)]
        log = FileLog(Counted(entries))
        writer, reader = (
            QueryCheckpoint(name, Path(name), name, tuple(ends), (), {"0": log}, "", {}) for name in ("w", "r")
        )
        found = through_folder(writer, reader, written)
        assert len(walks) == 1
        for each in range(batches):
            read = [written.batches.get(path.removeprefix("file://"), -1) for path in log.up_to(each)]
            assert found.received[each] == max(read, default=-1) + 1


def test_the_reader_of_a_folder_is_not_its_writer(tmp_path):
    reader, taken = WrittenQuery(tmp_path / "reader"), tmp_path / "reader" / "sources" / "0"
    log = tmp_path / "out" / "_spark_metadata"
    log.mkdir(parents=True)
    taken.mkdir(parents=True)
    entry = {"path": (tmp_path / "out" / "a.json").as_uri(), "action": "add", "timestamp": 0, "batchId": 0}
    for folder in (log, taken):
        (folder / "0").write_text(f"v1\n{json.dumps(entry)}")
    reader.batch({"logOffset": 0})
    declared = {"folders": [{"path": str(tmp_path / "out"), "written_by": "reader"}]}
    with pytest.raises(ConfigInvalid, match=r"reader is declared to write .*/out, and reads files of it"):
        planned([reader.folder], "reader@0", declared=declared)


def test_an_undeclared_folder_of_a_file_sink_is_an_error(tmp_path):
    """As with a table, a missed edge would make the line wrong."""
    reader, taken = WrittenQuery(tmp_path / "reader"), tmp_path / "reader" / "sources" / "0"
    (tmp_path / "out" / "_spark_metadata").mkdir(parents=True)
    taken.mkdir(parents=True)
    entry = {"path": (tmp_path / "out" / "day=1" / "a.json").as_uri(), "timestamp": 0, "batchId": 0}
    (taken / "0").write_text(f"v1\n{json.dumps(entry)}")
    reader.batch({"logOffset": 0})
    with pytest.raises(ConfigInvalid, match=r"reader reads files of .*/out, which a file sink writes"):
        planned([reader.folder], "reader@0")
    declared = {"other_folders": [str(tmp_path / "out")]}
    assert query_of(planned([reader.folder], "reader@0", declared=declared), "reader").stays


def test_a_declared_edge_is_bounded_by_time(tmp_path):
    writer, reader = WrittenQuery(tmp_path / "writer"), WrittenQuery(tmp_path / "reader")
    for number in range(4):
        writer.batch(number)
        reader.batch(number, at_ms=began(number, BATCH_MS // 2))
    declared = {"edges": [{"writer": "writer", "reader": "reader", "over": "the orders database"}]}
    plan = planned([writer.folder, reader.folder], "writer@1", declared=declared)
    assert query_of(plan, "reader").batch == 1
    assert (
        "it may hold batches 2 to 3 of writer through the orders database"
        in query_of(plan, "reader").reasons[-1].sentence
    )


def test_a_query_may_be_named_by_its_id(tmp_path):
    world = Topic(tmp_path)
    declared = {"topics": [{"topic": "orders", "written_by": [world.writer.query]}]}
    plan = planned([world.writer.folder, world.reader.folder], f"{world.writer.query}@2", declared=declared)
    assert query_of(plan, "reader").batch == 2


# -- the file ------------------------------------------------------------------------------------------------------------


def test_a_declaration_is_read_from_yaml(tmp_path):
    path = tmp_path / "declared.yaml"
    path.write_text("clock_skew_ms: 50\ntopics:\n  - topic: orders\n    written_by: [writer]\n")
    declared = read_declared(path)
    assert (declared.clock_skew_ms, declared.topics[0].written_by) == (50, ["writer"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topics: [", "line 1 is not YAML"),
        ("topic: orders", "topic: Extra inputs are not permitted"),
        ("topics:\n  - topic: orders\n", "topics.0.written_by: Field required"),
        ("clock_skew_ms: a lot", "clock_skew_ms: Input should be a valid integer"),
        ("format: 2", "format: Input should be less than or equal to 1"),
        ("- one", "the file: Input should be a valid dictionary"),
        ("!!python/object/apply:os.system [true]", "is not YAML"),
    ],
)
def test_a_wrong_declaration_is_refused(tmp_path, text, message):
    path = tmp_path / "declared.yaml"
    path.write_text(text)
    with pytest.raises(ConfigInvalid, match=message):
        read_declared(path)


def test_a_missing_declaration_is_refused(tmp_path):
    with pytest.raises(ConfigInvalid, match="there is no file"):
        read_declared(tmp_path / "declared.yaml")


def test_declared_queries_tables_and_folders_must_exist(tmp_path):
    world = Topic(tmp_path)
    folders = [world.writer.folder, world.reader.folder]
    with pytest.raises(ConfigInvalid, match="names a query 'nobody' that is not in the plan"):
        planned(folders, "writer@2", declared={"topics": [{"topic": "orders", "written_by": ["nobody"]}]})
    with pytest.raises(CheckpointForeign, match="is no Delta table"):
        planned(folders, "writer@2", declared={"tables": [{"path": str(tmp_path)}]})
    with pytest.raises(CheckpointForeign, match="has no log of a file sink"):
        planned(folders, "writer@2", declared={"folders": [{"path": str(tmp_path), "written_by": "writer"}]})
