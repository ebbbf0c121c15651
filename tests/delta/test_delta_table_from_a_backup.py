"""A Delta table from an older backup, or without its newest commits, is noticed by every reader of its marker."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from delta_kit import context, ids, output, stage
from deltalake import DeltaTable
from spark_ckpt_delta import DeltaSink
from spark_ckpt_delta.publisher import DeltalakePublisher
from spark_ckpt_delta.repair import main as repair

from checkpoint_protocols.ids import Epoch
from spark_ckpt.connector import EpochOutput
from spark_ckpt.errors import ConfigInvalid, PublishConflict


def opened(table: Path, incarnation: int = 1) -> DeltalakePublisher:
    return DeltalakePublisher(str(table), {}, context(incarnation))


def known(table: Path, epoch: int, incarnation: int = 1) -> EpochOutput:
    """Return an epoch of a sink whose earlier epochs have rows, and are acknowledged in the log."""
    committed = output(table, epoch, [stage(table, {"id": [epoch]}, incarnation)], incarnation)
    return replace(committed, acked=Epoch(epoch - 1), newest=Epoch(epoch), rows_before=epoch - 1)


def lose_the_newest_commit(table: Path) -> None:
    (table / f"_delta_log/{DeltaTable(str(table)).version():020d}.json").unlink()


def three(table: Path) -> None:
    for epoch in (1, 2, 3):
        opened(table).publish(known(table, epoch))


def test_an_epoch_is_not_published_to_a_table_that_has_lost_the_rows_before_it(table: Path) -> None:
    three(table)
    lose_the_newest_commit(table)

    with pytest.raises(PublishConflict) as caught:
        opened(table, 2).publish(known(table, 4, 2))

    assert caught.value.marker == 2
    assert ids(table) == [1, 2]


def test_epochs_without_rows_need_no_marker_of_their_own(table: Path) -> None:
    three(table)
    empty = replace(output(table, 4, []), acked=Epoch(3), rows_before=3)
    opened(table).publish(empty)

    opened(table).publish(replace(known(table, 5), rows_before=3))

    assert ids(table) == [1, 2, 3, 5]


def test_after_a_restore_of_the_newest_backup_the_epoch_is_published(table: Path, tmp_path: Path) -> None:
    three(table)
    shutil.copytree(table, tmp_path / "newest")
    lose_the_newest_commit(table)
    fourth = known(table, 4, 2)
    with pytest.raises(PublishConflict):
        opened(table, 2).publish(fourth)

    shutil.copytree(tmp_path / "newest", table, dirs_exist_ok=True)
    opened(table, 2).publish(fourth)

    assert ids(table) == [1, 2, 3, 4]


@pytest.mark.parametrize("engine", ["deltalake", "spark"])
def test_the_command_of_the_refusal_declares_the_tables_epoch(
    table: Path, engine: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = DeltaSink(str(table), engine=engine)
    command = sink.declaring(context(), Epoch(3)).split()
    assert command[:3] == ["python", "-m", "spark_ckpt_delta.repair"]

    assert repair(command[3:]) == 0

    assert capsys.readouterr().out == f"{table}: epoch 3\n"
    marker = sink.newest_published(context())
    assert marker is not None
    assert (marker.epoch, marker.is_of("any")) == (3, True)


def test_the_command_of_a_table_with_storage_options_asks_for_them(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sink = DeltaSink(str(table), storage_options={"timeout": "30s"})
    command = shlex.split(sink.declaring(context(), Epoch(3)))[3:]

    assert repair(command) == ConfigInvalid.exit_code
    assert "next: write one JSON object" in capsys.readouterr().err
    Path("STORAGE_OPTIONS.json").write_text(json.dumps({"timeout": "30s"}))
    assert repair(command) == 0
    assert capsys.readouterr().out == f"{table}: epoch 3\n"


def test_a_declared_epoch_lets_the_job_continue_without_the_lost_rows(table: Path) -> None:
    three(table)
    lose_the_newest_commit(table)
    repair(DeltaSink(str(table)).declaring(context(), Epoch(3)).split()[3:])

    opened(table, 2).publish(known(table, 4, 2))

    assert ids(table) == [1, 2, 4]


def test_a_marker_never_decreases(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    three(table)

    code = repair(DeltaSink(str(table)).declaring(context(), Epoch(2)).split()[3:])

    assert code == PublishConflict.exit_code
    assert PublishConflict.condition in capsys.readouterr().err
