"""Sinks that change between the commit of an epoch and its publish: a table that was moved, a sink that was taken out."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from spark_ckpt_delta import DeltaSink

from spark_ckpt import failpoints
from spark_ckpt.connector import SinkRows
from spark_ckpt.epochs.identity import Confirmed
from spark_ckpt.errors import ConfigInvalid, IdentityChanged
from spark_ckpt.failpoints import FailpointHit
from spark_ckpt.outbox.rule import BatchVerdict
from spark_ckpt.outbox.running import OutboxRun
from tests.outbox.outbox_kit import SINKS
from tests.rewind.outbox_world import Rows, World, wanted


def test_the_rows_of_an_unpublished_epoch_move_with_their_table(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run(3)
    with failpoints.armed("EPOCH_COMMITTED:raise"), pytest.raises(FailpointHit):
        world.run(1)
    shutil.move(world.gold, tmp_path / "moved")
    world.gold = tmp_path / "moved"
    settings = world.settings()
    settings = replace(settings, sinks={**settings.sinks, "gold": SinkRows(DeltaSink(str(world.gold)))})
    with pytest.raises(IdentityChanged, match="accept_moved='gold'"):
        OutboxRun(settings).call(Rows(3, [(3, 6)]))
    run = OutboxRun(replace(settings, confirmed=Confirmed(moved=frozenset({"gold"}))))
    assert run.call(Rows(3, [(3, 6)])) is BatchVerdict.AGAIN
    run.close()
    assert world.table() == wanted(4)


def test_a_sink_is_taken_out_once_it_has_every_epoch(tmp_path: Path) -> None:
    """An epoch without rows counts, too: retention keeps it, and all after it, until the sink acknowledges it."""
    world = World(tmp_path)
    world.run(2)
    with failpoints.armed("EPOCH_COMMITTED:raise"), pytest.raises(FailpointHit):
        world.run(1)
    settings = world.settings()
    without = replace(settings, sinks={"gold": settings.sinks["gold"]})
    with pytest.raises(ConfigInvalid, match="unpublished epochs for sink 'alerts'"):
        OutboxRun(without).call(Rows(2, []))
    world.run(1)
    world.plan(3)
    run = OutboxRun(without)
    assert run.call(Rows(3, [(3, 6)])) is BatchVerdict.NEW
    run.close()
    assert not any(map(world.log().state().unsettled, SINKS))
