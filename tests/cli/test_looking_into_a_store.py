"""`list`, `show`, `state`, `diff` and `verify` print the content of the store, and change nothing."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import spark_ckpt as ckpt
from spark_ckpt.cli import show
from spark_ckpt.cli.diff import as_table, changes_between
from spark_ckpt.cli.output import Id, cell, datum
from spark_ckpt.epochs.records import OperatorSnapshot
from spark_ckpt.errors import EpochNotFound, StoreForeign
from spark_ckpt.store.log_table import LogTable
from spark_ckpt.store.spark_state import Known, Moment
from spark_ckpt.store.state_rows import CHANGED_IN, TIMEOUT, keyed, visible
from tests.store.store_world import OPERATOR, SINK, World, rewrite

SNAPSHOT = OperatorSnapshot(operator=OPERATOR, key_groups=1, key_schema="k string", state_schema="v bigint")


def uri(world):
    return world.store.location.uri


def test_list_has_every_epoch_and_its_publish_status(command, world):
    answer = command("list", uri(world), "--json")

    assert answer.code == 0
    assert [(each["epoch"], each["status"]) for each in answer.json["epochs"]] == [
        (1, "published"),
        (2, "unpublished"),
        (3, "unpublished"),
    ]
    assert (answer.json["job"], answer.json["latest"]) == ("job", 3)


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_show_has_an_epoch_that_a_driver_commits_meanwhile(command, world, monkeypatch, form):
    monkeypatch.setattr(show, "chosen_epoch", lambda *_: world.epoch({"z": 1}).epoch)

    answer = command("show", uri(world), *form)

    assert answer.code == 0
    assert "4" in answer.out


def test_list_marks_epochs_of_a_diverged_branch(command, branches):
    found = {each["epoch"]: each["status"] for each in command("list", uri(branches), "--json").json["epochs"]}

    assert found == {1: "published", 2: "abandoned", 3: "abandoned", 4: "published", 5: "unpublished"}


def test_text_for_a_pipe_has_neither_colours_nor_frames(command, world):
    text = command("list", uri(world)).out

    assert text.isascii()
    assert "\x1b" not in text
    assert [line.split()[0] for line in text.splitlines() if line[:5].strip().isdecimal()] == ["1", "2", "3"]


def test_list_has_the_size_of_an_epochs_state(command, world):
    listed = {each["epoch"]: each["state_bytes"] for each in command("list", uri(world), "--json").json["epochs"]}
    files = world.store.log.manifest(2).operators[OPERATOR].files

    assert listed[1] < listed[2] < listed[3]
    assert listed[2] == sum(file.size_bytes for file in files)


def test_list_names_the_epoch_with_a_damaged_manifest_and_the_damage(command, world):
    rewrite(Path(uri(world)), lambda row: row | {"body": row["body"].replace("a", "b")} if row["epoch"] == 2 else row)

    answer = command("list", uri(world), "--json")

    output = {each["epoch"]: (each["state_bytes"] is None, each["damage"] or "") for each in answer.json["epochs"]}
    assert (answer.code, output[1], output[3]) == (0, (False, ""), (False, ""))
    assert output[2][0] and "[CKPT_EPOCH_DAMAGED]" in output[2][1]
    (line,) = [line for line in command("list", uri(world)).out.splitlines() if line.split()[:1] == ["2"]]
    assert "damaged" in line


def test_list_prints_the_newest_epochs_and_savepoints_and_counts_the_rest(command, tmp_path, monkeypatch):
    world = World(tmp_path / "store")
    world.begin()
    for number in range(40):
        world.epoch({"a": number}, materialize=False)
    world.store.log.add_savepoint("first", 1)
    read = []
    refresh = LogTable.refresh
    monkeypatch.setattr(LogTable, "refresh", lambda table: read.append(table) or refresh(table))

    text = command("list", uri(world)).out
    assert len(read) < 10, "the log is read once, not once for each epoch"
    shown = [int(line.split()[0]) for line in text.splitlines() if line[:5].strip().isdecimal()]
    assert shown == [1, *range(11, 41)]
    assert text.endswith("9 older epochs can be restored, too; to print all: spark-ckpt list STORE --all\n")
    assert "older epochs" not in command("list", uri(world), "--all").out
    assert len(command("list", uri(world), "--json").json["epochs"]) == 40


def test_list_names_unpublished_epochs_and_their_publisher(command, world):
    world.store.log.release(world.line.incarnation, "stopped")
    assert (
        f"sink {SINK} has not acknowledged epochs 2 and 3: the next start publishes what it continues from, as far as the sink "
        "lacks it" in command("list", uri(world)).out
    )


def test_show_prints_the_newest_epoch_by_default(command, world):
    newest, named = command("show", uri(world), "--json").json, command("show", uri(world), 1, "--json").json

    assert (newest["epoch"], newest["base"], named["epoch"], named["base"]) == (3, 2, 1, 0)
    assert newest["operators"][0]["operator"] == OPERATOR
    assert [(each["rows"], each["published"]) for each in (*newest["outputs"], *named["outputs"])] == [
        (1, False),
        (1, True),
    ]


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_state_at_every_epoch_has_the_changes_up_to_it(command, world, epoch):
    rows = command("state", uri(world), OPERATOR, "--epoch", epoch, "--json").json["rows"]

    assert {row["k"]: row["v"] for row in rows} == world.expected[epoch]


def test_state_finds_a_key_and_the_epoch_that_changed_it(command, world):
    answer = command("state", uri(world), OPERATOR, "--key", "k=b", "--json").json

    assert (answer["keys"], answer["rows"]) == (2, [{"k": "b", "v": 3, "ckpt_epoch": 2}])


def test_state_of_a_savepoint_is_the_state_of_its_epoch(command, world):
    command("savepoint", "add", uri(world), "before", "--epoch", 1)

    rows = command("state", uri(world), OPERATOR, "--savepoint", "before", "--json").json["rows"]

    assert {row["k"]: row["v"] for row in rows} == world.expected[1]


def stateless(folder):
    """Create one epoch whose operator has no state yet: no row has come."""
    world = World(folder)
    world.begin()
    world.commit(world.manifest(stage=False))
    return world


def test_empty_state_prints_no_line_and_no_row(command, tmp_path):
    store = uri(stateless(tmp_path / "store"))
    assert command("state", store, OPERATOR).out == f"operator {OPERATOR}, epoch 1: 0 keys\n"
    assert command("state", store, OPERATOR, "--key", "k=a").out == f"operator {OPERATOR}, epoch 1: 0 keys\n"
    answer = command("state", store, OPERATOR, "--json").json
    assert (answer["keys"], answer["rows"]) == (0, [])
    assert [each["name"] for each in answer["columns"]] == ["k", "v", "ckpt_epoch"]


def test_show_has_the_rows_in_flight_on_an_edge(command, world):
    (edge,) = command("show", uri(world), 2, "--json").json["edges"]
    assert (edge["edge"], edge["consumed"], edge["produced"], edge["in_flight"]) == ("loop", 1, 2, 1)
    printed = command("show", uri(world), 2).out
    assert "in flight" in printed
    assert "value string" in printed


def test_state_prints_numbers_without_separators(command, tmp_path):
    world = World(tmp_path / "store")
    world.begin()
    world.epoch({"a": 1_700_000_000_123})
    world.epoch({"a": 1_800_000_000_123})
    assert "1800000000123" in command("state", uri(world), OPERATOR).out
    assert "1700000000123 -> 1800000000123" in command("diff", uri(world), OPERATOR, 1, 2).out
    assert "operator totals, epoch 2: 1 key\n" in command("state", uri(world), OPERATOR).out


def test_the_first_timeout_of_a_state_changes_its_own_key_only():
    def at(epoch, keys, timeouts):
        columns = {"k": keys, "v": [1] * len(keys), CHANGED_IN: [epoch] * len(keys)}
        table = pa.table({**columns, TIMEOUT: pa.array(timeouts, pa.int64())})
        return keyed(visible(table, SNAPSHOT), ["k"])

    changes = changes_between(at(1, ["a", "b", "c"], [None] * 3), at(2, ["b", "c"], [None, 17]))
    assert [(each.kind, each.key["k"]) for each in changes] == [("removed", "a"), ("changed", "c")]
    columns, rows = as_table(changes)
    assert (columns, rows[1]) == (["", "k", "v", TIMEOUT], ("changed", "c", 1, "- -> 17"))


def test_timeouts_of_keys_are_printed_without_separators():
    table = pa.table({"k": ["a"], CHANGED_IN: [1], TIMEOUT: [1_700_000_000_123]})
    assert [datum(value) for value in visible(table, SNAPSHOT).to_pylist()[0].values()] == ["a", "1", "1700000000123"]


def test_numbers_of_epochs_and_incarnations_are_printed_as_commands_accept_them():
    assert [cell(value) for value in (Id(12_345), 12_345, None)] == ["12345", "12,345", "-"]


def test_a_store_without_epochs_is_listed_as_empty(command, tmp_path):
    world = World(tmp_path / "store")
    world.begin()
    text = command("list", uri(world)).out
    assert "no epochs yet" in text
    assert "rows in" not in text


def test_the_version_of_an_epoch_in_the_state_table_is_printed(command, world):
    world.store.materialize(world.store.log.manifest(3))
    output = command("state", uri(world), OPERATOR, "--version")
    assert output.out == f"{world.store.state(OPERATOR).version(3)}\n"
    assert command("state", uri(world), OPERATOR, "--version", "--json").json["version"] == int(output.out)
    assert command("state", uri(world), OPERATOR, "--version", "--epoch", 2).code in (0, 5)


def test_the_exported_readers_answer_as_the_command_does(world):
    world.store.materialize(world.store.log.manifest(3))
    assert ckpt.read_state(uri(world), OPERATOR).sort_by("k").to_pylist() == [
        {"k": "b", "v": 3, "ckpt_epoch": 2},
        {"k": "c", "v": 5, "ckpt_epoch": 3},
    ]
    assert ckpt.state_version(uri(world), OPERATOR) == world.store.state(OPERATOR).version(3)


def test_the_exported_readers_create_nothing(tmp_path):
    def content(folder):
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    for read in (ckpt.read_state, ckpt.state_version):
        with pytest.raises(StoreForeign):
            read(str(tmp_path / "nowhere"), OPERATOR)
    assert not (tmp_path / "nowhere").exists()

    world = stateless(tmp_path / "store")  # its state table was never written
    before = content(tmp_path)
    assert ckpt.read_state(uri(world), OPERATOR).num_rows == 0
    for operator in (OPERATOR, "another"):
        with pytest.raises(EpochNotFound):
            ckpt.state_version(uri(world), operator)
    assert content(tmp_path) == before


def test_a_limit_counts_the_omitted_rows(command, world):
    answer = command("state", uri(world), OPERATOR, "--limit", 1)

    assert "1 more" in answer.out


def test_diff_names_added_removed_and_changed_keys(command, world):
    answer = command("diff", uri(world), OPERATOR, 1, 3, "--json").json

    assert {each["key"]["k"]: (each["kind"], each["before"], each["after"]) for each in answer["changes"]} == {
        "a": ("removed", {"v": 1}, None),
        "b": ("changed", {"v": 2}, {"v": 3}),
        "c": ("added", None, {"v": 5}),
    }
    assert (answer["added"], answer["removed"], answer["changed"]) == (1, 1, 1)


def test_diff_refuses_an_operator_that_was_sparks_own_at_one_of_the_epochs(command, world):
    moment = Moment(1, 0, "{}", "v1", "RocksDBStateStoreProvider", 1, 2, (OPERATOR,))
    state = world.store.spark_states.keep(Path(uri(world)), [], moment, Known())
    world.commit(world.manifest().model_copy(update={"operators": {}, "spark_state": state}))

    for epochs in ((3, 4), (4, 3)):
        answer = command("diff", uri(world), OPERATOR, *epochs)
        assert (answer.code, answer.out) == (2, "")
        assert f"operator '{OPERATOR}' is the job's at epoch 3, and Spark's own at the other one" in answer.err


def test_verify_finds_every_epoch_of_a_good_store_intact(command, world):
    answer = command("verify", uri(world), "--deep", "--json")

    assert (answer.code, answer.json["whole"]) == (0, True)


def test_verify_names_the_epochs_that_need_a_missing_file(command, world):
    manifest = world.store.log.manifest(2)
    newest = manifest.operators[OPERATOR].files[-1]
    (Path(world.store.state(OPERATOR).location.uri) / newest.path).unlink()

    answer = command("verify", uri(world), "--json")

    assert answer.code == 5
    assert {each["epoch"]: each["whole"] for each in answer.json["epochs"]} == {1: True, 2: False, 3: False}
    assert newest.path in answer.json["epochs"][1]["damage"]


def test_verify_advises_an_epoch_of_the_current_branch(command, world):
    """Epoch 3 is whole, too, but a restore has left it: its rows have been produced again since."""
    world.begin(restore=2)
    newest = world.epoch({"a": 9}).operators[OPERATOR].files[-1]
    (Path(world.store.state(OPERATOR).location.uri) / newest.path).unlink()

    assert "newest present epoch: 2; " in command("verify", uri(world)).out


def test_only_a_deep_verify_finds_a_file_whose_bytes_changed(command, world):
    file = world.store.log.manifest(1).operators[OPERATOR].files[0]
    path = Path(world.store.state(OPERATOR).location.uri) / file.path
    content = bytearray(path.read_bytes())
    content[20] ^= 0xFF
    path.write_bytes(content)

    shallow = command("verify", uri(world), 1)
    assert shallow.code == 0
    assert "present: every file exists with its size" in shallow.out
    assert "whole" not in shallow.out, "no command has compared its bytes"
    assert command("verify", uri(world), 1, "--deep").code == 5


def test_a_deep_verify_compares_rows_of_the_log_that_nothing_reads(command, world):
    world.store.log.release(world.line.incarnation)
    rewrite(Path(uri(world)), lambda row: row | {"body": row["body"] + " "} if row["kind"] == "released" else row)

    assert command("verify", uri(world), "--json").code == 0
    answer = command("verify", uri(world), "--deep", "--json")
    assert (answer.code, answer.json["whole"], {each["whole"] for each in answer.json["epochs"]}) == (5, False, {True})
    assert ["(released) of the epoch log does not match its digest" in each for each in answer.json["log"]] == [True]
    assert answer.json["log"][0] in command("verify", uri(world), "--deep").out


def test_inspecting_changes_nothing(command, world):
    def content():
        return {path: path.read_bytes() for path in Path(uri(world)).rglob("*") if path.is_file()}

    before = content()
    store = uri(world)
    looks = [
        ("list", store),
        ("show", store),
        ("state", store, OPERATOR),
        ("diff", store, OPERATOR, 1, 2),
        ("verify", store, "--deep"),
        ("savepoint", "list", store),
        ("restore", store, "latest", "--dry-run"),
    ]

    assert {command(*each).code for each in looks} == {0}
    assert content() == before


def test_the_module_runs_as_a_program_and_stdout_is_only_json(world):
    command = [sys.executable, "-m", "spark_ckpt", "list", uri(world), "--json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert (run.returncode, run.stderr, run.stdout[0], run.stdout.rstrip()[-1]) == (0, "", "{", "}")


def test_on_a_terminal_the_heading_is_bold_and_nothing_is_cut(world, tmp_path):
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "spark_ckpt", "list", uri(world)]
    run = subprocess.run(command, stdout=follower, env={**os.environ, "TERM": "xterm", "COLUMNS": "40"}, timeout=120)
    os.close(follower)
    text = os.read(leader, 100_000).decode()
    os.close(leader)

    assert run.returncode == 0
    assert "\x1b[1m" in text
    assert "unpublished" in text and "…" not in text


@pytest.mark.parametrize("table", ["", "copy"], ids=["the store itself", "below it"])
def test_a_copy_of_state_is_refused_within_the_store(command, world, tmp_path, table):
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    answer = command("state", uri(world), OPERATOR, "--to", str(Path(uri(world)) / table))
    assert (answer.code, answer.out) == (2, "")
    assert "name a table outside of the store" in answer.err
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before
