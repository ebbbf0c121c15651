"""A restore plan equals the effect of the restore."""

from pathlib import Path

import pytest

from spark_ckpt.epochs.recovery import plan
from spark_ckpt.epochs.retention import Retention
from spark_ckpt.epochs.ways_back import whole_manifests
from spark_ckpt.errors import EpochDamaged, SourceInvalid
from spark_ckpt.store.location import Location
from spark_ckpt.store.stage_folder import Stages, record_stages
from tests.store.store_world import SINK, World, flip_in_body


def planned(world, target):
    log = world.store.log
    return plan(log.state(), target, log.manifest, world.store.verify)


def sink_of(found):
    return next(each for each in found.sinks if each.sink == SINK)


@pytest.mark.parametrize("target", ["latest", 1, 2, 3, 4, 5, 0])
def test_the_plan_equals_the_effect_of_the_restore(branches, target):
    found = planned(branches, target)
    point = branches.begin(restore=target)

    assert (found.epoch, found.incarnation, found.next_epoch) == (
        point.manifest.epoch,
        point.incarnation,
        point.last + 1,
    )
    assert found.restored_from == point.restored_from
    assert list(sink_of(found).publish) == [each.epoch for each in point.unpublished.get(SINK, [])]


def test_planning_begins_no_incarnation(branches):
    before = branches.store.log.state()
    planned(branches, 1)

    assert branches.store.log.state() == before


def test_a_plan_names_diverged_epochs_and_visible_rows(branches):
    found = planned(branches, 1)

    assert found.abandoned == (4, 5)
    assert sink_of(found).again == (2, 3, 4)
    assert sink_of(found).never == (5,)


def test_rows_that_are_produced_again_are_counted(branches):
    assert sink_of(planned(branches, 1)).again_rows == 3


def test_epochs_of_an_earlier_diverged_branch_are_listed_separately(branches):
    later = planned(branches, 4)
    assert (sink_of(later).again, sink_of(later).never) == ((), (5,))

    earlier = planned(branches, 2)
    assert (sink_of(earlier).again, sink_of(earlier).elsewhere) == ((3,), (4,))


def test_the_newest_epoch_abandons_nothing(branches):
    found = planned(branches, "latest")

    assert (found.abandoned, sink_of(found).publish, sink_of(found).again) == ((), (5,), ())


def test_a_plan_marks_facts_that_retention_has_deleted(world):
    log = world.store.log
    log.add_savepoint("first", 1)
    for number in range(4, 12):
        world.epoch({"a": number}, acked=number - 1)
    log.record_acks(world.line.incarnation, [])
    before = log.state()
    world.store.retain(Retention(keep_last=2, slack=0))
    kept = sorted(log.state().by_id)
    assert kept[0] == 1 and 2 not in kept

    found = sink_of(planned(world, "first"))

    assert not found.complete
    assert set(found.again) | set(found.never) == set(kept) - {1}

    # Retention may come between the read of the log and the reads of its epochs.
    overtaken = sink_of(plan(before, "first", log.manifest, world.store.verify))
    assert set(overtaken.damaged) == set(overtaken.again) - set(kept)
    assert [each.epoch for each in whole_manifests(before, 11, log.manifest, world.store.verify)] == kept[::-1]
    assert log.manifest(11) == before.newest_readable(log.manifest)


def test_a_plan_refuses_a_damaged_epoch_as_the_restore_does(world):
    newest = world.store.log.manifest(3).operators["totals"].files[-1]
    (Path(world.store.state("totals").location.uri) / newest.path).unlink()
    with pytest.raises(EpochDamaged) as caught:
        planned(world, "latest")
    assert caught.value.context["restore"] == 2
    assert planned(world, 2).epoch == 2


def test_epochs_of_the_left_branch_below_the_restored_one_are_abandoned_too(world):
    world.epoch({"a": 4})
    world.begin(restore=2)
    world.epoch({"a": 5})
    world.epoch({"a": 6})
    world.begin(restore=4)
    world.epoch({"a": 7})
    assert planned(world, 6).abandoned == (3, 4, 7)


def test_a_plan_does_not_need_the_damaged_epochs_that_it_leaves(command, branches, inbox):
    flip_in_body(branches.store.location.local, "epoch", 4)
    text = command("restore", branches.store.location.uri, 1).out
    assert "epochs 2 to 4 (2 rows) stay visible" in text
    assert "not readable, and so not counted: the rows of epoch 4" in text

    flip_in_body(inbox.parent / "files-store", "epoch", 3)
    text = command("restore", inbox.parent / "files-store", 1).out
    assert f"source rows: at least 1 file of {inbox} will be read again (epoch 3 cannot be read, and" in text
    [source] = command("restore", inbox.parent / "files-store", 1, "--json").json["inputs"]
    assert (source["files"], source["uncounted"]) == (1, [3])


def test_the_command_prints_the_plan_in_words(command, branches):
    text = command("restore", branches.store.location.uri, 1, "--dry-run").out

    assert "epochs 2 to 4 (3 rows) stay visible" in text
    assert "epoch 5 is not known to be published" in text
    assert "Nothing was changed" in text


def test_commands_on_the_store_of_a_stage_name_the_start_of_the_stage(command, branches):
    location = branches.store.location
    record_stages(Location(str(location.local.parent)), Stages(job="program", stages={"store": (), "other": ()}))
    assert "To do it: job.start_stages('store', restore=1)\n" in command("restore", location.uri, 1).out
    assert (
        "restore it with job.start_stages('store', restore='v1')" in command("savepoint", "add", location.uri, "v1").out
    )
    assert "start one with Job(..., standby=True)" in command("lease", location.uri).out
    refused = command("restore", location.uri, "latest", "--accept-new-sink", SINK).err
    assert f"job.start_stages('store', restore=4, accept_new_sink='{SINK}') produces" in refused


def test_a_command_on_the_folder_of_a_program_names_the_stores_of_its_stages(command, branches):
    folder = branches.store.location.local.parent
    assert "check the path" in command("restore", folder, 1).err
    record_stages(Location(str(folder)), Stages(job="program", stages={"store": ()}))
    refused = command("restore", folder, 1)
    assert (refused.code, f"give the store of one: {folder}/store\n" in refused.err) == (3, True)
    found = {each["check"]: each for each in command("doctor", "--store", folder, "--json").json["findings"]}
    assert (found["store"]["status"], found["newest epoch"]["detail"][:7]) == ("ok", "epoch 5")


def test_a_plan_with_a_new_sink_names_its_start_and_is_refused_while_the_old_one_has_unpublished_rows(
    command, branches
):
    uri = branches.store.location.uri
    text = command("restore", uri, 4, "--dry-run", "--accept-new-sink", SINK).out
    assert "another table or topic takes its place and begins with the first new epoch" in text
    assert f"job.start(restore=4, accept_new_sink='{SINK}') (--conf " in text

    refused = command("restore", uri, "latest", "--dry-run", "--accept-new-sink", SINK)
    assert (refused.code, "CKPT_IDENTITY_CHANGED" in refused.err) == (8, True)
    assert "committed epochs: 5" in refused.err
    assert command("restore", uri, 4, "--dry-run", "--accept-new-sink", "otu").code == 2


def test_the_command_counts_in_words_that_agree(command, world):
    text = command("restore", world.store.location.uri, 1, "--dry-run").out
    assert "epochs 2 and 3 are not known to be published" in text
    text = command("restore", world.store.location.uri, 2, "--dry-run").out
    assert "epoch 2 (1 row) will be published first" in text
    assert "epoch 3 is not known to be published" in text
    assert "leaves      epoch 3 (kept until retention forgets it)" in text


@pytest.fixture
def inbox(tmp_path):
    """Create three epochs that consumed a file each, of a folder with a relative path; return the folder."""
    from spark_ckpt_files.ledger import Consumed, FileLedger
    from spark_ckpt_files.listing import Directory

    world, folder = World(tmp_path / "files-store"), tmp_path / "in"
    folder.mkdir()
    world.begin()
    ledger, consumed = FileLedger(world.store.location.child("sources", "rows")), Consumed()
    for number in (1, 2, 3):
        (folder / f"{number}.csv").write_text("1\n")
        consumed = ledger.after(consumed, list(Directory(str(folder)).stat([f"{number}.csv"]).values()))
        read = {"cursors": {"rows": dict(consumed.cursor("in"))}, "operators": {}}
        place = {"source_identities": {"rows": {"path": str(folder)}}}
        world.commit(world.manifest().model_copy(update=read | place))
    return folder


def test_a_dry_run_lists_the_files_that_will_be_read_again(command, inbox):
    text = command("restore", inbox.parent / "files-store", 1, "--dry-run").out

    assert f"source rows: 2 files of {inbox} will be read again\n" in text


def test_a_restore_prints_its_consequences_first_also_without_a_dry_run(command, branches, inbox):
    text = command("restore", branches.store.location.uri, 1).out
    assert text == command("restore", branches.store.location.uri, 1, "--dry-run").out
    assert text.index("stay visible") < text.index("state of operator")

    text = command("restore", inbox.parent / "files-store", 1).out
    assert text.index("will be read again") < text.index("reads on from")
    assert "rows    1 file" in text


def test_a_dry_run_names_files_that_are_gone(command, inbox):
    (inbox / "2.csv").unlink()

    answer = command("restore", inbox.parent / "files-store", 1, "--dry-run")

    assert "1 of them are gone: 2.csv" in answer.out
    answer = command("restore", inbox.parent / "files-store", 1, "--dry-run", "--json").json
    assert [(each["source"], each["files"], each["missing"]) for each in answer["inputs"]] == [("rows", 2, ["2.csv"])]


def test_a_dry_run_that_cannot_list_the_repeated_input_prints_the_plan_and_fails(command, inbox):
    for segment in (inbox.parent / "files-store" / "sources").rglob("*.arrow"):
        segment.write_bytes(b"")

    answer = command("restore", inbox.parent / "files-store", 1, "--dry-run", "--json")

    (again,) = answer.json["inputs"]
    assert (again["files"], again["missing"]) == (None, None)
    assert again["error"].startswith("[CKPT_SOURCE_INVALID]")
    assert (answer.code, "CKPT_SOURCE_INVALID" in answer.err) == (SourceInvalid.exit_code, True)
    assert answer.json["epoch"] == 1


def test_a_dry_run_of_the_newest_epoch_reads_nothing_again(command, inbox):
    assert "read again" not in command("restore", inbox.parent / "files-store", "latest", "--dry-run").out
