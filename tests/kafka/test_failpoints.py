"""Failpoints: off by default, exact when armed, refused when misspelt."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_ckpt import failpoints
from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.failpoints import Failpoint, FailpointHit, hit


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


def test_nothing_happens_unless_armed() -> None:
    for point in Failpoint:
        hit(point)


def test_the_nth_hit_acts_and_no_other() -> None:
    failpoints.arm("MID_SEND:raise:3")

    hit(Failpoint.MID_SEND)
    hit(Failpoint.ACKED)
    hit(Failpoint.MID_SEND)
    with pytest.raises(FailpointHit, match="MID_SEND"):
        hit(Failpoint.MID_SEND)
    hit(Failpoint.MID_SEND)


def test_a_folder_makes_a_point_act_once_over_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(failpoints.ONCE_VARIABLE, str(tmp_path))
    failpoints.arm("ACKED:raise")
    with pytest.raises(FailpointHit):
        hit(Failpoint.ACKED)

    failpoints.arm("ACKED:raise")
    hit(Failpoint.ACKED)


@pytest.mark.kill
@pytest.mark.parametrize("spec", ["ACKED:kill", "ACKED:kill:1:20"])
def test_kill_is_sigkill(spec: str) -> None:
    program = "import time; from spark_ckpt.failpoints import *; hit(Failpoint.ACKED); time.sleep(600)"

    run = subprocess.run(
        [sys.executable, "-c", program], env={failpoints.VARIABLE: spec, "PYTHONPATH": _path()}, timeout=300
    )

    assert run.returncode == -signal.SIGKILL


def _path() -> str:
    return ":".join(entry for entry in sys.path if entry)


@pytest.mark.parametrize(
    "spec", ["NOWHERE:kill", "ACKED", "ACKED:explode", "ACKED:kill:0", "ACKED:kill:1:2:3", "acked:kill"]
)
def test_a_misspelt_specification_is_refused(spec: str) -> None:
    with pytest.raises(ConfigInvalid, match="POINT:ACTION"):
        failpoints.arm(spec)
