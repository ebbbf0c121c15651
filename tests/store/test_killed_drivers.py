"""P3, P5 with real processes: drivers are killed one after the other on one store, and nothing acknowledged is lost."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from store_world import OPERATOR, World, as_dict

from spark_ckpt.store.store import Store

DRIVER = Path(__file__).with_name("killed_driver.py")
KINDS = ("put", "fsync", "sync-folder", "commit", "delete")


def run_driver(store: Path, oracle: Path, kind: str, nth: int) -> int:
    path = os.pathsep.join([str(DRIVER.parent), *sys.path])
    command = [sys.executable, str(DRIVER), str(store), str(oracle), kind, str(nth)]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False, timeout=120).returncode


def noted(oracle: Path, what: str) -> dict[int, dict[str, int]]:
    return {int(path.name.split("-")[1]): json.loads(path.read_text()) for path in oracle.glob(f"{what}-*[0-9]")}


def check(store: Store, oracle: Path) -> int:
    """The newest epoch is the last acknowledged one or the one under way, complete, and has the intended state."""
    log_state = store.log.state()
    acknowledged, intended = noted(oracle, "acknowledged"), noted(oracle, "intended")
    newest = max(acknowledged, default=0)
    assert log_state.latest in (newest, newest + 1)
    for brief in log_state.epochs:
        store.verify(store.log.manifest(brief.epoch), deep=True)
        assert as_dict(store.state(OPERATOR).read(brief.epoch)) == intended[brief.epoch]
    return log_state.latest


@pytest.mark.kill
@pytest.mark.parametrize(
    # in the gate, too: test_crash_at_every_durable_step.py stops a store at every fifth step, without processes
    ("kinds", "nths", "drawn"),
    [(("fsync", "commit"), (2,), 2), pytest.param(KINDS, (2, 5), 4, marks=pytest.mark.long)],
)
def test_no_kill_loses_an_acknowledged_epoch(
    tmp_path: Path, kinds: tuple[str, ...], nths: tuple[int, ...], drawn: int
) -> None:
    store, oracle = tmp_path / "store", tmp_path / "oracle"
    oracle.mkdir()
    World(store)
    points = [(kind, nth) for kind in kinds for nth in nths]
    points += [("any", random.Random(7 + number).randrange(3, 90)) for number in range(drawn)]
    killed, furthest = 0, 0
    for kind, nth in points:
        killed += run_driver(store, oracle, kind, nth) == -9
        latest = check(World(store).store, oracle)
        assert latest >= furthest
        furthest = latest
    assert killed >= len(points) - 2, "the kills happened"
    assert run_driver(store, oracle, "none", 1) == 0
    assert check(World(store).store, oracle) >= furthest + 4
