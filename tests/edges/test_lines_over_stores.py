"""`spark-ckpt line` and `spark-ckpt restore --to` over stores of programs that edges join."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from spark_ckpt.epochs.lines import Line, to_target
from spark_ckpt.errors import ConfigInvalid, EpochNotFound, Fenced, RestoreUnderWay, StoreInUse
from spark_ckpt.program_edges import line_stores
from spark_ckpt.program_edges.line_stores import read_stores, restore_line
from spark_ckpt.store import epoch_log, proposals
from spark_ckpt.store.location import Location
from spark_ckpt.store.stage_folder import Stages, record_stages
from tests.cli.cli_world import CommandLine
from tests.edges.line_kit import ELSEWHERE, ProgramKit


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


class Trio:
    """Programs orders -> totals -> alerts after four rounds: each reader has the rows of the sender's epochs 1 to 4."""

    def __init__(self, folder: Path) -> None:
        self.orders = ProgramKit(folder, "orders")
        self.totals = ProgramKit(folder, "totals", self.orders)
        self.alerts = ProgramKit(folder, "alerts", self.totals)
        self.programs = (self.orders, self.totals, self.alerts)
        for number in range(1, 5):
            self.round(index=10 * number)

    def round(self, index: int = 0) -> None:
        self.orders.commit(index=index)
        self.totals.read(self.orders)
        self.totals.commit(index=index)
        self.alerts.read(self.totals)
        self.alerts.commit(index=index)

    def stop(self) -> None:
        for each in self.programs:
            each.stop()

    def continue_after_restore(self) -> None:
        for each in self.programs:
            each.begin("latest")
        self.round()

    @property
    def uris(self) -> list[str]:
        return [each.store.location.uri for each in self.programs]

    def latest(self) -> dict[str, int]:
        return {each.name: each.store.log.state().latest for each in self.programs}

    def known(self):
        return read_stores([each.store.reopened() for each in self.programs])


@pytest.fixture
def trio(tmp_path: Path) -> Trio:
    return Trio(tmp_path)


def staged(trio: Trio) -> str:
    """The folder of the stores, as that of one program with three stages."""
    root = trio.orders.store.location.local.parent
    known = Stages(job="three", stages={"orders": (), "totals": ("orders",), "alerts": ("totals",)})
    record_stages(Location(str(root)), known)
    return str(root)


def test_the_folder_of_a_program_selects_the_stores_of_its_stages(command: CommandLine, trio: Trio) -> None:
    root = staged(trio)
    assert command("line", root, "--json").json == command("line", *trio.uris, "--json").json
    trio.stop()
    command("restore", root, "--to", "line-20")
    assert trio.latest() == {"orders": 2, "totals": 2, "alerts": 2}


def test_the_list_of_a_folder_has_a_line_for_each_stage(command: CommandLine, trio: Trio) -> None:
    root = staged(trio)
    lines = command("list", root).out.splitlines()
    assert lines[0].split() == ["job", "three"]
    assert [line.split()[:3] for line in lines[-3:]] == [
        ["orders", "-", "4"],
        ["totals", "orders", "4"],
        ["alerts", "totals", "4"],
    ]
    found = command("list", root, "--json").json
    assert [(each["stage"], each["latest"]) for each in found["stages"]] == [
        ("orders", 4),
        ("totals", 4),
        ("alerts", 4),
    ]


def test_the_list_of_a_folder_has_a_stage_that_has_not_started(command: CommandLine, trio: Trio) -> None:
    root = staged(trio)
    before = {"orders": (), "totals": ("orders",), "alerts": ("totals",)}
    record_stages(Location(root), Stages(job="three", stages=before | {"new": ("orders",)}))
    assert command("list", root).out.splitlines()[-1].split() == ["new", "orders", "0", "-", "0", "none", "yet"]
    new = command("list", root, "--json").json["stages"][-1]
    assert (new["stage"], new["latest"], new["driver"]) == ("new", 0, None)
    (Path(root) / "new").mkdir()
    (Path(root) / "new" / "notes.txt").write_text("mine")
    assert command("list", root).code == 3


def test_the_command_lists_lines_of_all_programs_with_their_names(command: CommandLine, trio: Trio) -> None:
    trio.totals.commit(index=40)
    found = command("line", *trio.uris, "--json").json["lines"]

    assert found[0] == {"line": None, "epochs": {"orders": 4, "totals": 5, "alerts": 4}, "reasons": []}
    assert {"line": "line-40", "epochs": {"orders": 4, "totals": 4, "alerts": 4}, "reasons": []} in found
    text = command("line", *trio.uris).out
    assert text.splitlines()[0].split() == ["line", "taken", "orders", "totals", "alerts"]


def test_the_command_says_why_an_epoch_is_in_no_line(command: CommandLine, trio: Trio) -> None:
    trio.orders.begin(3)
    trio.orders.commit()
    found = command("line", *trio.uris, "--why", "alerts@4", "--json").json
    assert found["in_a_line"] is False
    assert any("totals goes back from epoch 4 to epoch 3" in reason for reason in found["reasons"])
    assert command("line", *trio.uris, "--why", "alerts@3", "--json").json["in_a_line"] is True


@pytest.mark.parametrize(
    ("target", "expected"),
    [("orders@2", (2, 2, 2)), ("totals@3", (4, 3, 3)), ("line-30", (3, 3, 3)), ("latest", (4, 4, 4))],
)
def test_a_restore_takes_every_store_to_its_epoch_of_the_line(
    command: CommandLine, trio: Trio, target: str, expected: tuple[int, ...]
) -> None:
    trio.stop()
    before = trio.latest()
    planned = command("restore", *trio.uris, "--to", target, "--dry-run", "--json").json
    assert trio.latest() == before
    assert tuple(planned["epochs"].values()) == expected

    done = command("restore", *trio.uris, "--to", target)
    assert done.code == 0, done.err
    assert tuple(trio.latest().values()) == expected
    assert all(each.store.log.state().is_free for each in trio.programs)


def test_programs_continue_from_the_line_and_all_their_rows_are_read_once(command: CommandLine, trio: Trio) -> None:
    trio.stop()
    command("restore", *trio.uris, "--to", "orders@2")
    trio.continue_after_restore()
    assert command("line", *trio.uris, "--json").json["lines"][0]["epochs"] == {"orders": 5, "totals": 5, "alerts": 5}


def test_a_restore_says_how_to_undo_it(command: CommandLine, trio: Trio) -> None:
    trio.totals.commit(index=40)
    trio.stop()
    done = command("restore", *trio.uris, "--to", "orders@2")
    assert "--to orders@4,totals@5,alerts@4" in done.out
    assert command("restore", *trio.uris, "--to", "orders@4,totals@5,alerts@4").code == 0
    assert trio.latest() == {"orders": 4, "totals": 5, "alerts": 4}
    trio.continue_after_restore()
    assert command("line", *trio.uris, "--json").json["lines"][0]["epochs"] == {"orders": 5, "totals": 6, "alerts": 5}


def test_programs_that_continued_after_a_restore_can_still_undo_it(command: CommandLine, trio: Trio) -> None:
    trio.stop()
    command("restore", *trio.uris, "--to", "orders@2")
    trio.continue_after_restore()
    trio.stop()
    assert command("restore", *trio.uris, "--to", "orders@4,totals@4,alerts@4").code == 0
    assert set(trio.latest().values()) == {4}


def test_a_restore_that_was_killed_says_how_to_undo_it(
    command: CommandLine, trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    trio.stop()
    killed_after(trio, "orders@2", stores=2, monkeypatch=monkeypatch)
    assert "--to orders@4,totals@4,alerts@4" in command("restore", *trio.uris, "--to", "orders@2").out


def test_a_restore_that_was_killed_names_the_programs_previous_branch(
    command: CommandLine, trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    trio.stop()
    command("restore", *trio.uris, "--to", "orders@2")
    trio.continue_after_restore()
    trio.stop()
    command("restore", *trio.uris, "--to", "orders@4,totals@4,alerts@4")
    killed_after(trio, "orders@3", stores=2, monkeypatch=monkeypatch)
    assert "--to orders@4,totals@4,alerts@4" in command("restore", *trio.uris, "--to", "orders@3").out


def test_a_restore_that_was_killed_at_its_end_says_how_to_undo_it(
    command: CommandLine, trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    trio.stop()
    killed_after(trio, "orders@2", stores=1, monkeypatch=monkeypatch, call="release")
    assert "--to orders@4,totals@4,alerts@4" in command("restore", *trio.uris, "--to", "orders@2").out


@pytest.mark.parametrize("released", [1, 2, 3], ids=["all_restored", "one_freed", "two_freed"])
def test_a_program_that_started_before_its_restore_was_run_again_keeps_its_epochs(
    command: CommandLine, trio: Trio, monkeypatch: pytest.MonkeyPatch, released: int
) -> None:
    trio.stop()
    target = "orders@2,totals@2,alerts@2"
    killed_after(trio, target, stores=released, monkeypatch=monkeypatch, call="release")
    started = [each for each in trio.programs if each.store.log.state().is_free]
    assert len(started) == released - 1
    for each in started:
        each.begin("latest")
        each.commit()
    newest = trio.latest()
    again = command("restore", *trio.uris, "--to", target)
    assert again.code == 0, again.err
    assert "--to orders@4,totals@4,alerts@4" in again.out
    assert trio.latest() == newest
    assert [each.name for each in trio.programs if not each.store.log.state().is_free] == [
        each.name for each in started
    ]


def test_a_restore_of_one_store_can_be_undone(command: CommandLine, tmp_path: Path) -> None:
    orders = ProgramKit(tmp_path, "orders")
    for _ in range(4):
        orders.commit()
    orders.stop()
    assert "--to orders@4" in command("restore", orders.store.location.uri, "--to", "orders@2").out
    assert command("restore", orders.store.location.uri, "--to", "orders@4").code == 0
    assert orders.store.log.state().latest == 4


@pytest.mark.parametrize(
    ("target", "code", "said"),
    [
        ("orders@3,totals@4,alerts@4", EpochNotFound.exit_code, "totals goes back from epoch 4 to epoch 3"),
        ("orders@3,totals@99,alerts@4", EpochNotFound.exit_code, "totals does not keep epoch 99"),
        ("orders@3,totals@3", ConfigInvalid.exit_code, "no epoch of program 'alerts' is given"),
        ("orders@3,totals@3,alerts@3,other@3", ConfigInvalid.exit_code, "no store of program 'other' is given"),
        ("orders@3,totals", ConfigInvalid.exit_code, "does not name an epoch of each program"),
    ],
)
def test_epochs_that_are_no_line_are_refused(
    command: CommandLine, trio: Trio, target: str, code: int, said: str
) -> None:
    trio.stop()
    refused = command("restore", *trio.uris, "--to", target)
    assert (refused.code, said in refused.err) == (code, True), refused.err
    assert set(trio.latest().values()) == {4}


def test_an_option_that_a_line_does_not_take_is_refused(command: CommandLine, trio: Trio) -> None:
    trio.stop()
    refused = command(
        "restore", *trio.uris, "--to", "orders@2", *("--accept-new-sink", "out", "--accept-new-sink", "late")
    )
    assert refused.code == ConfigInvalid.exit_code
    assert "job.start(accept_new_sink=['late', 'out'])" in refused.err


def test_a_running_program_is_refused_by_name_and_nothing_is_changed(command: CommandLine, trio: Trio) -> None:
    trio.orders.stop()
    trio.alerts.stop()
    before = {each.name: each.store.log.state().incarnation for each in trio.programs}
    refused = command("restore", *trio.uris, "--to", "orders@2")
    assert refused.code == StoreInUse.exit_code
    assert "totals" in refused.err
    assert {each.name: each.store.log.state().incarnation for each in trio.programs} == before


def test_a_running_program_is_fenced_on_the_operators_request(command: CommandLine, trio: Trio) -> None:
    assert command("restore", *trio.uris, "--to", "orders@2", "--fence").code == 0
    with pytest.raises(Fenced):
        trio.totals.store.log.renew(1, 1000)


def test_a_restore_that_was_killed_between_stores_blocks_starts_and_continues_when_run_again(
    command: CommandLine, trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    trio.stop()
    killed_after(trio, "orders@2", stores=2, monkeypatch=monkeypatch)
    reached = [each for each in trio.programs if each.store.log.state().latest == 2]
    assert {each.name for each in reached} == {"alerts", "totals"}, "readers first"
    for each in reached:
        with pytest.raises(RestoreUnderWay) as refused:
            each.store.log.begin_incarnation(ELSEWHERE, takeover=True)
        assert refused.value.context["target"] == "orders@2"

    incarnations = {each.name: each.store.log.state().incarnation for each in reached}
    assert command("restore", *trio.uris, "--to", "orders@2").code == 0
    assert set(trio.latest().values()) == {2}
    assert {each.name: each.store.log.state().incarnation for each in reached} == incarnations, "not restored twice"
    for each in trio.programs:
        each.begin("latest")


def test_the_advice_after_a_killed_restore_to_a_time_is_a_command_that_continues_it(
    command: CommandLine, trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    trio.stop()
    target = "2100-01-01 00:00:00"  # a shell would split it
    killed_after(trio, target, stores=1, monkeypatch=monkeypatch)
    [each] = [each for each in trio.programs if proposals.is_restoring(each.store.log.state())]
    with pytest.raises(RestoreUnderWay) as refused:
        each.store.log.begin_incarnation(ELSEWHERE, takeover=True)
    options = shlex.split(refused.value.hint.partition("STORE... ")[2])
    assert command("restore", *trio.uris, *options).code == 0
    each.begin("latest")


def test_two_processes_do_not_restore_to_one_target_at_once(
    command: CommandLine, trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each may have read another line under the name "latest": a mix of both would be no line.
    with monkeypatch.context() as other:
        other.setattr(line_stores, "current_holder", lambda name: ELSEWHERE.model_copy(update={"name": name}))
        killed_after(trio, "latest", stores=1, monkeypatch=monkeypatch, fence=True)
    trio.orders.commit()
    trio.totals.read(trio.orders)
    trio.totals.commit()
    refused = command("restore", *trio.uris, "--to", "latest", "--fence")
    assert refused.code == StoreInUse.exit_code
    assert "another process restores the stores to latest" in refused.err
    monkeypatch.setattr(proposals, "provably_dead", lambda holder: holder.host == ELSEWHERE.host)
    assert command("restore", *trio.uris, "--to", "latest", "--fence").code == 0


def test_a_program_that_ran_since_the_line_was_chosen_is_not_restored(command: CommandLine, trio: Trio) -> None:
    trio.stop()
    known = trio.known()
    line = to_target(known.programs, "orders@2")
    trio.orders.begin("latest")
    trio.orders.commit()
    trio.orders.stop()
    with pytest.raises(StoreInUse) as refused:
        restore_line(known, line, "orders@2", fence=False)
    assert trio.orders.store.log.state().latest == 5
    # The readers are restored, and refuse starts until the advice is followed.
    assert "run the refused command again" in refused.value.hint
    restored = {"program": "orders", "restored": "alerts, totals"}
    assert {name: refused.value.context[name] for name in restored} == restored
    trio.orders.begin("latest")
    running = command("restore", *trio.uris, "--to", "orders@2")
    assert "a driver runs orders; the restore is not over\n  restored: totals, alerts\n" in running.err
    trio.orders.stop()
    known = trio.known()
    restore_line(known, to_target(known.programs, "orders@2"), "orders@2", fence=False)
    assert set(trio.latest().values()) == {2}


def test_a_restore_to_another_target_does_not_take_over_a_killed_one(
    command: CommandLine, trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    trio.stop()
    killed_after(trio, "orders@2", stores=1, monkeypatch=monkeypatch)
    refused = command("restore", *trio.uris, "--to", "orders@1", "--fence")
    assert refused.code == RestoreUnderWay.exit_code
    assert "orders@2" in refused.err


def killed_after(
    trio: Trio,
    target: str,
    stores: int,
    monkeypatch: pytest.MonkeyPatch,
    call: str = "begin_incarnation",
    fence: bool = False,
) -> None:
    """A restore that dies after a call on the logs of the given number of stores."""
    known, reached = trio.known(), []
    done = getattr(epoch_log.EpochLog, call)

    class Killed(Exception):
        pass

    def counting(self, *arguments, **named):
        if len(reached) == stores:
            raise Killed
        reached.append(self)
        return done(self, *arguments, **named)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(epoch_log.EpochLog, call, counting)
        restore_line(known, to_target(known.programs, target), target, fence=fence)


def test_a_reader_whose_store_was_not_given_is_named(command: CommandLine, trio: Trio) -> None:
    found = command("line", *trio.uris[1:], "--json").json
    [outside] = found["outside"]
    assert "totals reads edge out" in outside and trio.uris[0] in outside


def test_rows_that_retention_deleted_end_the_line(command: CommandLine, trio: Trio) -> None:
    trio.stop()
    trio.orders.forget(4)
    refused = command("restore", *trio.uris, "--to", "totals@2", "--dry-run")
    assert refused.code == 5
    assert "epoch 3 are deleted" in refused.err


def test_lines_are_listed_while_retention_drops_epochs(
    command: CommandLine, trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come between the two reads of a log: of its epochs, and of their manifests."""
    read, calls = epoch_log.EpochLog.readable, []

    def overtaken(self, *arguments, **named):
        calls.append(self)
        if len(calls) == 1:
            trio.orders.forget(4)
        return read(self, *arguments, **named)

    monkeypatch.setattr(epoch_log.EpochLog, "readable", overtaken)
    lines = command("line", *trio.uris, "--json").json["lines"]
    assert {each["epochs"]["orders"] for each in lines} == {4}


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_damaged_old_epoch_is_in_no_line_and_hides_no_other(command: CommandLine, trio: Trio, epoch: int) -> None:
    trio.stop()
    trio.orders.damage(epoch)
    lines = command("line", *trio.uris, "--json").json["lines"]
    assert lines[0]["epochs"] == {"orders": 4, "totals": 4, "alerts": 4}
    assert epoch not in {each["epochs"]["orders"] for each in lines}
    assert command("restore", *trio.uris, "--to", "orders@3").code == 0
    assert trio.latest() == {"orders": 3, "totals": 3, "alerts": 3}


def test_no_line_lets_a_reader_miss_the_rows_of_a_damaged_epoch(command: CommandLine, trio: Trio) -> None:
    trio.stop()
    trio.orders.damage(3)
    planned = command("restore", *trio.uris, "--to", "totals@2", "--dry-run", "--json").json
    assert planned["epochs"] == {"orders": 2, "totals": 2, "alerts": 2}
    assert any("epoch 3 are deleted or damaged" in each for each in planned["reasons"])


def test_no_line_leaves_a_reader_within_a_damaged_epoch(command: CommandLine, tmp_path: Path) -> None:
    """It has one of two files of epoch 2, and never gets the other one."""
    orders = ProgramKit(tmp_path, "orders")
    totals = ProgramKit(tmp_path, "totals", orders)
    for files in (1, 2, 2):
        orders.commit()
        if orders.base < 3:
            totals.read(orders)
            totals.positions["orders"] = totals.positions["orders"].model_copy(update={"of": files})
            totals.commit()
    orders.damage(2)
    lines = command("line", orders.store.location.uri, totals.store.location.uri, "--json").json["lines"]
    assert [each["epochs"] for each in lines] == [{"orders": 1, "totals": 1}]
    assert "a part of a damaged epoch" in lines[0]["reasons"][0]


def test_a_damaged_newest_epoch_is_said(command: CommandLine, trio: Trio) -> None:
    trio.orders.damage(4)
    assert "CKPT_EPOCH_DAMAGED" in command("line", *trio.uris).err


def test_a_loop_of_programs_is_restored_together(command: CommandLine, tmp_path: Path) -> None:
    ask = ProgramKit(tmp_path, "ask")
    answer = ProgramKit(tmp_path, "answer", ask)
    ask.reads.append(answer)
    for _ in range(4):
        ask.read(answer)
        ask.commit()
        answer.read(ask)
        answer.commit()
    ask.stop()
    answer.stop()
    uris = [ask.store.location.uri, answer.store.location.uri]
    planned = command("restore", *uris, "--to", "ask@2", "--dry-run", "--json").json
    assert planned["epochs"] == {"ask": 2, "answer": 2}


def test_an_epoch_that_says_a_later_index_serves_it_also_after_retention(trio: Trio) -> None:
    log = trio.orders.store.log
    log.say_index(log.state().incarnation, 4, 77)
    log.say_index(log.state().incarnation, 3, 99)
    assert (log.state().index, log.state().by_id[3].index) == (77, 30)
    trio.orders.forget(4)
    assert trio.orders.store.reopened().log.state().index == 77
    trio.orders.commit(index=70)
    newest = log.state().by_id[5]
    assert (newest.after, newest.index) == (77, 77), "the index never decreases"


def test_the_lines_of_an_epoch_without_an_index_are_the_same_after_retention(trio: Trio) -> None:
    """An aligned reader says each line of an idle time. Rows of the epoch are stamped with the line before the first one."""
    log = trio.orders.store.log
    trio.orders.commit(index=0)
    for index in (120, 180, 240):
        log.say_index(log.state().incarnation, 5, index)
    before = log.state().by_id[5]
    trio.orders.forget(5)
    after = trio.orders.store.reopened().log.state().by_id[5]
    assert (before.after, before.index) == (after.after, after.index) == (119, 240)


def test_a_store_given_twice_is_refused(trio: Trio) -> None:
    with pytest.raises(ConfigInvalid):
        read_stores([trio.orders.store, trio.orders.store.reopened()])


def test_a_line_is_text_and_epochs() -> None:
    assert (Line({"a": 1}).name, Line({"a": 1}, 42).name) == ("", "line-42")
