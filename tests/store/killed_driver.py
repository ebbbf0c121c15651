"""Kills its own process with SIGKILL at the n-th durable step of a kind. Run by `test_killed_drivers`.

Arguments: store, oracle folder, kind of step ("any" for all), n. Every acknowledged epoch is noted in the oracle
folder first as intended, then as acknowledged, so that the parent knows both without reading the store.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from store_world import ELSEWHERE, OPERATOR, SINK, World

from spark_ckpt.epochs.records import SinkAck
from spark_ckpt.epochs.retention import Retention
from spark_ckpt.store import durable


def kill_at(kind: str, nth: int) -> None:
    hits = [0]

    def step(what: str, path: str) -> None:
        hits[0] += what == kind or kind == "any"
        if hits[0] == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    durable.on_step = step


def note(oracle: Path, name: str, content: object) -> None:
    part = oracle / f"{name}.part"
    part.write_text(json.dumps(content))
    part.rename(oracle / name)


def main(store: str, oracle: Path, kind: str, nth: int) -> None:
    world = World(store)
    known = {int(path.name.split("-")[1]): json.loads(path.read_text()) for path in oracle.glob("intended-*")}
    kill_at(kind, nth)
    point = world.store.log.begin_incarnation(ELSEWHERE, "latest", 1000, takeover=True)
    base = point.manifest.epoch
    world.line.incarnation, world.line.base, world.last = point.incarnation, base, point.last
    world.line.state = known.get(base, {})
    world.line.chain = point.manifest.operators[OPERATOR].files if base else ()
    world.store.materialize(point.manifest)
    for number in range(4):
        world.snapshot({f"k{point.last % 5}": point.last * 10 + number}, full=number == 2)
        manifest = world.manifest((SinkAck(sink=SINK, epoch=world.last),) if world.last else ())
        note(oracle, f"intended-{manifest.epoch}", world.line.state)
        world.commit(manifest)
        note(oracle, f"acknowledged-{manifest.epoch}", world.line.state)
        world.store.materialize(manifest)
        world.store.retain(Retention(keep_last=2, slack=0))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
