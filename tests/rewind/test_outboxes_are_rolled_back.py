"""A rewind rolls back a query's outbox, its table and its marker; rows of its topic are listed and published again."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from deltalake import DeltaTable
from outbox_world import Refused, Rows, TopicPublisher, World, listed, settings, wanted
from rewind_kit import WrittenQuery, WrittenTable, synced
from spark_ckpt_delta import DeltaSink, marker, publisher

from checkpoint_protocols.ids import Epoch, Incarnation
from spark_ckpt import failpoints
from spark_ckpt.connector import EpochOutput, SinkContext
from spark_ckpt.epochs import restore
from spark_ckpt.errors import (
    BatchUnexpected,
    CkptError,
    ConfigInvalid,
    EpochDamaged,
    Fenced,
    PublishConflict,
    RewindOutOfReach,
    RewindQueryRuns,
    RewindStale,
    RewindUnderWay,
    StoreForeign,
)
from spark_ckpt.failpoints import Failpoint, FailpointHit
from spark_ckpt.outbox.running import OutboxRun
from spark_ckpt.store import proposals
from spark_ckpt.store.holder import current_holder
from spark_ckpt.store.store import Store
from spark_rewind import carrying, outbox_logs, records
from spark_rewind.applying import apply, undo
from spark_rewind.pinning import PinRequest, take_pin
from spark_rewind.planning import RewindRequest, plan_rewind


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Four correct batches, then four wrong ones, and a copy of their folder."""
    made = World(tmp_path_factory.mktemp("outbox") / "world")
    made.run(4)
    made.run(4, wrong=1000)
    shutil.copytree(made.root, made.root.with_name("copy"))
    return made


@pytest.fixture
def world(kept: World) -> World:
    """The same world for each test, in the same place, as its files name each other by absolute paths."""
    shutil.rmtree(kept.root)
    shutil.copytree(kept.root.with_name("copy"), kept.root)
    again = World(kept.root)
    again.began = kept.began
    return again


def check(world: World, left: Counter, batches: int = 10) -> None:
    """Compare with a run without wrong batches: the table has its rows, the topic also the listed ones."""
    assert world.table() == wanted(batches)
    assert Counter(world.topic.rows()) - left == wanted(batches)
    assert not left - Counter(world.topic.rows())


def test_the_plan_names_diverged_epochs_and_the_sinks_that_have_them(world: World) -> None:
    plan = world.planned("q@3")
    [outbox] = plan.outboxes
    assert (outbox.base, outbox.latest) == (4, 8)
    assert [(each.epoch, each.batch, each.rows, each.shown) for each in outbox.left] == [
        (5, 4, {"alerts": 1, "gold": 1}, ["alerts", "gold"]),
        (7, 6, {"alerts": 1, "gold": 1}, ["alerts", "gold"]),
        (8, 7, {"alerts": 1, "gold": 1}, ["alerts", "gold"]),
    ]
    [table] = plan.tables
    assert (Path(table.path), table.stays) == (world.gold, False)
    assert [each.batches for each in table.undone] == [["q batch 4"], ["q batch 6"], ["q batch 7"]]
    assert [each.strangers for each in table.undone] == [[], [], []]


def test_a_reader_of_the_outboxs_table_rolls_back_with_it(world: World) -> None:
    reader = WrittenQuery(world.root / "checkpoints" / "reader")
    table = str(DeltaTable(str(world.gold)).metadata().id)
    for version in range(1, 7):
        at = {"reservoirId": table, "reservoirVersion": version + 1, "index": -1}
        reader.batch({"sourceVersion": 1, **at, "isStartingVersion": False})
    request = RewindRequest([str(world.checkpoint), str(reader.folder)], "q@3", outboxes=[world.store])
    plan = plan_rewind(request, 0)
    assert {each.name: each.batch for each in plan.queries} == {"q": 3, "reader": 2}
    [gold] = plan.tables
    assert (gold.version, gold.written_by, gold.read_by) == (3, ["q"], ["reader"])
    [why] = [each.reasons[-1].sentence for each in plan.tables]
    assert "holds epochs 5 to 8 of the outbox of q" in why
    record = apply(plan, settings())
    world.run(6)
    check(world, listed(record))


def test_after_a_rewind_the_query_continues_as_without_wrong_batches(world: World) -> None:
    record = apply(world.planned("q@3"), settings())
    assert sum(listed(record).values()) == 3
    world.run(6)
    check(world, listed(record))


def test_listed_rows_are_durable_before_the_decision(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the decision they are not listed again."""
    durable = synced(monkeypatch)
    [outbox] = apply(world.planned("q@3"), settings()).outboxes
    rows = {str(path) for folder in outbox.rows.values() for path in Path(folder).iterdir()}
    first_commit = next(at for at, path in enumerate(durable) if Path(path).parent == world.gold / "_delta_log")
    assert rows
    assert rows <= set(durable[:first_commit])


# In the gate: the first and the last batch, and one between.
@pytest.mark.parametrize("batch", [-1, 3, 6, *(pytest.param(each, marks=pytest.mark.long) for each in (0, 1, 2, 4, 5))])
def test_every_batch_can_be_rolled_back_to(tmp_path: Path, batch: int) -> None:
    world = World(tmp_path)
    world.run(batch + 1)
    world.run(7 - batch, wrong=1000, dies=batch % 2 == 0)
    plan = world.planned(f"q@{batch}" if batch >= 0 else "2000-01-01T00:00:00Z")
    record = apply(plan, settings())
    world.run(9 - batch)
    check(world, listed(record))


def test_a_query_rolls_back_twice(world: World) -> None:
    first = apply(world.planned("q@3"), settings())
    world.run(1)
    world.run(3, wrong=500)
    second = apply(world.planned("q@4"), settings())
    assert sum(listed(second).values()) == 2
    world.run(5)
    check(world, listed(first) + listed(second))


def test_after_an_undo_the_query_continues_as_without_the_rewind(world: World) -> None:
    plan = world.planned("q@3")
    table, topic = world.table(), world.topic.rows()
    apply(plan, settings())
    undo(plan, settings())
    assert (world.table(), world.topic.rows()) == (table, topic)
    world.run(2, wrong=1000)
    assert world.table() == Counter(world.topic.rows())
    assert len(world.topic.rows()) == len(wanted(10))


KILLS = [
    point.name
    for point in Failpoint
    if point.name.startswith("REWIND_") and point.name not in ("REWIND_LOG_SWAPPED", "REWIND_FILE_MOVED")
]
"""All steps except those of a file sink's folder."""
OPEN = ("REWIND_PREPARING", "REWIND_DONE")
"""Steps without fences: before them or after them."""


def every_other(points: Sequence[str], first: int) -> list[ParameterSet]:
    """The gate kills an apply at every other point, and an undo at the points between."""
    return [pytest.param(point, marks=() if at % 2 == first else pytest.mark.long) for at, point in enumerate(points)]


def dies(point: str, monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> None:
    """Leave the files of a process that dies at the point."""
    with monkeypatch.context() as dying, failpoints.armed(f"{point}:raise"):
        dying.setattr(carrying.Carrier, "clean_up", lambda carrier, record: None)
        with pytest.raises(FailpointHit):
            call()


@pytest.mark.parametrize("point", every_other(KILLS, 0))
def test_a_killed_apply_continues(world: World, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    plan = world.planned("q@3")
    dies(point, monkeypatch, lambda: apply(plan, settings()))
    if point not in (*OPEN, "REWIND_UNFENCED"):
        with pytest.raises(Refused):
            world.run(1)
    record = apply(plan, settings())
    world.run(2)
    check(world, listed(record), 6)


@pytest.mark.parametrize("point", every_other(KILLS, 1))
def test_a_killed_undo_continues(world: World, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    plan = world.planned("q@3")
    table, topic = world.table(), world.topic.rows()
    apply(plan, settings())
    dies(point, monkeypatch, lambda: undo(plan, settings()))
    undo(plan, settings())
    assert (world.table(), world.topic.rows()) == (table, topic)
    world.run(2, wrong=1000)
    assert world.table() == Counter(world.topic.rows())
    assert len(world.topic.rows()) == len(wanted(10))


# -- refusals, each with the bug that it guards against -----------------------------------------------------------------------


class Moves(World):
    """The same query, reading a table of another query, which rolls back as well."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.bronze = WrittenTable(root / "bronze")
        self.ingest = WrittenQuery(root / "checkpoints" / "ingest")

    def plan(self, number: int) -> None:
        while self.bronze.versions <= number:
            batch = self.ingest.batch({"logOffset": self.ingest.batches}, at_ms=1)
            self.bronze.version((self.ingest.query, batch))
        super().plan(number)

    def ends(self, number: int) -> list[str]:
        return [json.dumps(self.bronze.at(number + 1))]

    def request(self, to: str, **more: object) -> RewindRequest:
        folders = [str(self.checkpoint), str(self.ingest.folder)]
        return RewindRequest(folders, to, [str(self.bronze.root)], outboxes=[self.store], **more)


def moved(tmp_path: Path) -> Moves:
    world = Moves(tmp_path)
    world.run(4)
    world.run(4, wrong=1000)
    return world


def run_the_rest(world: Moves) -> None:
    """Run the rest of the query, with offsets of the new versions."""
    commits = sorted((world.bronze.root / "_delta_log").glob("*.json"))
    world.bronze.versions = len(commits)
    offset = len(commits) - 4
    world.ends = lambda number: [json.dumps(world.bronze.at(number + 1 + offset))]
    world.bronze.versions = 1_000
    world.run(6)


def test_a_query_whose_offsets_move_with_a_table_continues_its_outbox(tmp_path: Path) -> None:
    world = moved(tmp_path)
    record = apply(world.planned("ingest@3"), settings())
    assert record.outboxes[0].moved is not None
    run_the_rest(world)
    check(world, listed(record))


def test_without_the_moved_identity_the_outbox_refuses_the_next_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = moved(tmp_path)
    monkeypatch.setattr(outbox_logs, "moved_batch", lambda change, checkpoint, batch: None)
    apply(world.planned("ingest@3"), settings())
    with pytest.raises(BatchUnexpected):
        run_the_rest(world)


def test_without_the_branch_in_the_log_the_start_refuses_the_table(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_logs, "branch", lambda change, identity: None)
    apply(world.planned("q@3"), settings())
    with pytest.raises(PublishConflict):
        world.run(6)


def test_the_log_knows_that_the_table_lost_epochs_until_the_undo(world: World) -> None:
    plan = world.planned("q@3")
    apply(plan, settings())
    after = world.log().state()
    assert (after.latest, after.acked["gold"], after.acked["alerts"]) == (4, 4, 8)
    assert after.unacked("gold") == [5, 6, 7, 8]
    undo(plan, settings())
    again = world.log().state()
    assert (again.latest, again.acked["gold"], again.unacked("gold")) == (8, 8, [])


def test_a_table_of_the_outbox_that_is_gone_is_not_asked_for_by_name(world: World) -> None:
    world.gold.rename(world.gold.with_name("elsewhere"))
    with pytest.raises(ConfigInvalid, match="gold of outbox 'orders' writes the table") as refused:
        world.planned("q@3")
    assert "start the query first" in refused.value.hint


def test_an_undo_that_meets_a_driver_is_not_sent_to_apply(world: World) -> None:
    plan = world.planned("q@3")
    apply(plan, settings())
    world.log().begin_incarnation(current_holder("orders"), takeover=True)
    with pytest.raises(RewindQueryRuns, match="lease") as refused:
        undo(plan, settings())
    assert "apply" not in refused.value.hint


def test_a_driver_that_holds_the_lease_is_refused(world: World) -> None:
    running = OutboxRunOf(world)
    plan = world.planned("q@3")
    before = world.table()
    with pytest.raises(RewindQueryRuns, match="lease"):
        apply(plan, settings())
    assert world.table() == before
    running.close()
    with pytest.raises(RewindStale, match="continued"):
        apply(plan, settings())
    record = apply(world.planned("q@3"), settings())
    world.run(5)
    check(world, listed(record), 9)


@pytest.mark.parametrize("checked", [True, False], ids=["as it ships", "planted: found after the decision"])
def test_an_epoch_that_no_branch_can_begin_at_is_refused_before_any_change(
    world: World, monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    """A sink lacks rows of the branch, and has newer rows of another branch."""
    if not checked:
        monkeypatch.setattr(outbox_logs, "recovery_point", lambda *given: None)
    monkeypatch.setattr(restore, "out_of_turn", lambda state, epoch, read: {"alerts": [4]} if epoch == 4 else {})
    plan, before = world.planned("q@3"), world.table()
    with pytest.raises(PublishConflict):
        apply(plan, settings())
    assert (world.table() == before) is checked


def without_answer_of_its_topic(world: World, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run a batch whose rows its topic does not take. Return the file with these rows in the store."""

    def publish(publisher: TopicPublisher, output: EpochOutput) -> None:
        raise PublishConflict("refused")

    # Batch 8 has no rows.
    world.run(1)
    with monkeypatch.context() as away, pytest.raises(PublishConflict):
        away.setattr(TopicPublisher, "publish", publish)
        world.run(1, wrong=1000)
    store = Store.open(world.store, "orders", kind="outbox")
    output = store.log.manifest(store.log.state().latest).outputs["alerts"]
    return Path(output.root or store.staged("alerts").location.uri, output.files[0].path)


def test_an_undo_of_an_outbox_whose_rows_are_gone_is_refused_before_any_change(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = without_answer_of_its_topic(world, monkeypatch)
    plan, before = world.planned("q@3"), world.table()
    apply(plan, settings())
    after = world.table()
    lost = rows.rename(rows.with_name("lost"))
    with pytest.raises(EpochDamaged) as refused:
        undo(plan, settings())
    assert "keep the rewind" in refused.value.hint
    assert world.table() == after != before
    lost.rename(rows)
    undo(plan, settings())
    assert world.table() == before


def test_a_rewind_leaves_an_epoch_whose_rows_are_gone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start refuses this epoch, and sends its user to a rewind."""
    rows = without_answer_of_its_topic(world, monkeypatch)
    rows.unlink()
    with pytest.raises(EpochDamaged):
        world.run(1)
    record = apply(world.planned("q@3"), settings())
    assert any(rows.name in note for note in record.notes)
    world.run(6)
    check(world, listed(record))


class OutboxRunOf:
    """A driver that has begun batch 8 and continues to run."""

    def __init__(self, world: World) -> None:
        self.driver = OutboxRun(world.settings())
        world.plan(8)
        self.driver.call(Rows(8, [(8, 0)]))

    def close(self) -> None:
        self.driver.close()


def test_a_driver_that_begins_after_the_plan_makes_it_stale(world: World) -> None:
    plan = world.planned("q@3")
    log = world.log()
    log.release(log.begin_incarnation(current_holder("orders"), takeover=True).incarnation)
    with pytest.raises(RewindStale, match="outbox 'orders'"):
        apply(plan, settings())


def test_a_driver_that_begins_while_the_rewind_prepares_makes_it_stale(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, before = world.planned("q@3"), world.table()
    take = outbox_logs.take

    def raced(change, identity):
        log = world.log()
        log.release(log.begin_incarnation(current_holder("orders"), takeover=True).incarnation)
        take(change, identity)

    monkeypatch.setattr(outbox_logs, "take", raced)
    with pytest.raises(RewindStale, match="outbox 'orders'"):
        apply(plan, settings())
    assert world.table() == before
    world.run(1, wrong=1000)


@pytest.mark.parametrize(
    ("closed", "refused"),
    [(True, RewindUnderWay), (False, PublishConflict)],
    ids=["as it ships", "planted: the log lets drivers begin"],
)
def test_no_driver_begins_until_the_rewind_is_over(
    world: World, monkeypatch: pytest.MonkeyPatch, closed: bool, refused: type[CkptError]
) -> None:
    """A batch that began before the fences reaches the outbox after them."""
    if not closed:
        monkeypatch.setattr(proposals, "refuse_if_rewinding", lambda log_state, holder: None)
    plan = world.planned("q@3")
    dies("REWIND_TABLE_COMMITTED", monkeypatch, lambda: apply(plan, settings()))
    fence = world.checkpoint / "offsets" / "8"
    fence.rename(world.root / "fence")
    world.plan(8)
    late = OutboxRun(world.settings())
    with pytest.raises(refused):
        late.call(Rows(8, [(8, 0)]))
    (world.root / "fence").replace(fence)
    record = apply(plan, settings())
    world.run(6)
    check(world, listed(record))


@pytest.mark.parametrize("fenced", [True, False], ids=["as it ships", "planted: the table fences no publisher"])
def test_a_late_publisher_is_fenced_by_the_table(world: World, monkeypatch: pytest.MonkeyPatch, fenced: bool) -> None:
    """The publisher has an epoch to publish when the table rolls back."""
    if not fenced:
        monkeypatch.setattr(records.OutboxChange, "raised", lambda change, table: {})
    log = world.log()
    files = log.manifest(8).outputs["gold"].files
    late = DeltaSink(str(world.gold)).publisher(
        None, SinkContext("orders", "gold", log.state().store_id, Incarnation(2))
    )
    apply(world.planned("q@3"), settings())
    output = EpochOutput(Epoch(9), Incarnation(2), Epoch(8), str(world.gold), {}, files, acked=Epoch(8))
    if fenced:
        with pytest.raises(Fenced):
            late.publish(output)
    else:
        late.publish(output)
    assert (world.table() == wanted(4)) is fenced


def test_a_table_rolled_back_before_its_first_epoch_has_no_marker(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run(3, wrong=1000)
    record = apply(world.planned("2000-01-01T00:00:00Z"), settings())
    assert record.outboxes[0].taken_back == {"gold": 0}
    world.run(6)
    check(world, listed(record), 6)


def test_a_marker_of_minus_one_taken_for_an_epoch_would_be_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.run(3, wrong=1000)
    apply(world.planned("2000-01-01T00:00:00Z"), settings())
    minus_one = marker.TableMarker(Epoch(-1), Incarnation(0))
    monkeypatch.setattr(publisher, "read_marker", lambda opened, application: minus_one)
    with pytest.raises(PublishConflict):
        world.run(6)


def test_an_epoch_that_retention_dropped_is_out_of_reach(tmp_path: Path) -> None:
    world = World(tmp_path, keep_epochs=2)
    world.run(24)
    with pytest.raises(RewindOutOfReach, match="outbox 'orders'"):
        world.planned("q@1")


def test_an_outbox_of_another_query_and_a_jobs_store_are_refused(world: World) -> None:
    other = WrittenQuery(world.root / "checkpoints" / "other")
    other.batch({"logOffset": 0})
    with pytest.raises(ConfigInvalid, match="not in the plan"):
        plan_rewind(RewindRequest([str(other.folder)], "other@0", outboxes=[world.store]), 0)
    Store.open(str(world.root / "job"), "job")
    with pytest.raises(StoreForeign, match="job 'job'"):
        plan_rewind(RewindRequest([str(world.checkpoint)], "q@0", outboxes=[str(world.root / "job")]), 0)


def test_a_plan_is_applied_in_another_folder_than_it_was_made_in(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.root)
    take_pin(PinRequest(world.request("", outboxes=["store"]), Path("pins"), "now"), 1)
    world.run(1, wrong=1000)
    (world.checkpoint / "state/0/0/8.delta").unlink()
    plan = world.planned("now", outboxes=["store"], pins=Path("pins"))
    monkeypatch.chdir("/")
    assert apply(plan, settings()).outboxes[0].base == 8
