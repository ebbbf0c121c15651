"""The recovery advice of an outbox with `spark-ckpt rewind plan` works: the query continues, and its table is right."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
from outbox_world import World, listed, settings, wanted

from spark_ckpt.cli.app import exit_code
from spark_ckpt.errors import BatchUnexpected, PublishConflict
from spark_ckpt.outbox.rule import Accepted
from spark_rewind.applying import apply


def batch_in(hint: str) -> int:
    """The batch that the recovery advice names."""
    assert "spark-ckpt rewind plan" in hint
    return int(re.findall(r"batch (\d+)", hint)[-1])


def test_a_store_from_an_older_backup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(tmp_path)
    world.run(4)
    shutil.copytree(world.store, tmp_path / "backup")
    world.run(4)
    shutil.rmtree(world.store)
    (tmp_path / "backup").rename(world.store)
    lost = Counter(world.topic.rows()) - wanted(4)

    with pytest.raises(BatchUnexpected) as refused:
        world.run(1)
    plan = world.planned(f"q@{batch_in(refused.value.hint)}")
    assert any("is older than q" in note for note in plan.notes)
    apply(plan, settings())
    with pytest.raises(PublishConflict) as ahead:
        world.run(1)
    command = re.search(r"spark-ckpt (accept-loss .*)", ahead.value.hint)
    assert command is not None
    assert exit_code(command[1].split()) == 0, capsys.readouterr().err
    world.run(5)

    assert world.table() == wanted(9)
    assert Counter(world.topic.rows()) == wanted(9) + lost


def test_a_restore_to_an_epoch_older_than_the_query(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run(4)
    world.run(4, wrong=1000)
    with pytest.raises(BatchUnexpected, match="rewind plan"):
        world.run(1, accepted=Accepted(restore=4))
    record = apply(world.planned("q@3"), settings())
    world.run(1, accepted=Accepted(restore=4))
    world.run(5)
    assert world.table() == wanted(10)
    assert Counter(world.topic.rows()) == wanted(10) + listed(record)
