"""A store with a few epochs, and the command line in this process."""

from __future__ import annotations

import json
from copy import copy, deepcopy
from dataclasses import dataclass

import pytest

from spark_ckpt.cli.app import exit_code
from tests.store.store_world import SINK, World


@dataclass
class Answer:
    """Result of one command."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


class CommandLine:
    """Run `spark-ckpt` commands and capture their output."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Answer:
        self._capsys.readouterr()
        code = exit_code([str(each) for each in arguments])
        printed = self._capsys.readouterr()
        return Answer(code, printed.out, printed.err)


def three_epochs(folder) -> World:
    """Create epochs 1 to 3; the sink has only epoch 1."""
    world = World(folder)
    world.begin()
    world.epoch({"a": 1, "b": 2})
    world.epoch({"b": 3, "c": 4}, acked=1)
    world.epoch({"a": None, "c": 5})
    return world


def moved_to(world: World, folder) -> World:
    """Return the same world on a copy of its store."""
    again = World(folder, copy(world.clock))
    again.expected, again.chains, again.line, again.last = deepcopy(
        (world.expected, world.chains, world.line, world.last)
    )
    return again


def two_branches(folder) -> World:
    """Publish epochs 1 to 3, restore epoch 1, and add epochs 4 and 5, with 4 published."""
    world = three_epochs(folder)
    world.store.log.record_acks(world.line.incarnation, [_ack(3)])
    world.begin(restore=1)
    world.epoch({"a": 10})
    world.epoch({"b": 20}, acked=4)
    return world


def _ack(epoch: int):
    from spark_ckpt.epochs.records import SinkAck

    return SinkAck(sink=SINK, epoch=epoch)
