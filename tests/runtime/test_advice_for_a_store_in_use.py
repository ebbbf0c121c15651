"""The error of a store in use names ways to start; each works as written in the error."""

from __future__ import annotations

import re

import pytest
from incarnation_kit import ELSEWHERE, JOB, WAIT_S
from run_kit import Bench

from spark_ckpt.config import CONF_PREFIX, JobConfig
from spark_ckpt.driver.standby import follower as follower_module
from spark_ckpt.errors import StoreInUse
from spark_ckpt.store.store import Store


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setattr(follower_module, "can_rehearse", lambda *_: False)
    return Bench(tmp_path, monkeypatch)


@pytest.fixture
def advice(bench):
    """Return the hint of a start while a driver of another host has the lease."""
    held = Store.open(str(bench.folder / "store"), JOB).log
    held.begin_incarnation(ELSEWHERE, "latest", 600_000)
    with pytest.raises(StoreInUse) as refused:
        bench.run("running")
    assert "--" not in refused.value.hint, "no option of a command line replaces a driver"
    return refused.value.hint


def test_the_argument_of_a_job_that_the_error_names_replaces_the_driver(bench, advice):
    [(name, value)] = re.findall(r"\bJob\(\.\.\., (\w+)=(\w+)\)", advice)
    run = bench.run("running", **{name: value})
    assert run.incarnation == 2
    assert run.stop(WAIT_S)


def test_the_conf_key_that_the_error_names_replaces_the_driver(bench, advice):
    [(key, value)] = re.findall(rf"({re.escape(CONF_PREFIX)}[\w.]+)=(\w+)", advice)
    named = JobConfig.of({}, {key: value}).model_dump(exclude_defaults=True)
    run = bench.run("running", **named)
    assert run.incarnation == 2
    assert run.stop(WAIT_S)


def test_the_start_that_the_error_names_waits_for_the_drivers_end(bench, advice):
    [name] = re.findall(r"\bjob\.start\((\w+)=True\)", advice)
    run = bench.run("running", **{name: True}, local_dir=bench.folder / "local")
    assert run.isStandby
    assert run.stop(WAIT_S)


def test_a_driver_that_stops_as_the_error_says_leaves_the_job_to_the_next_start(bench, advice):
    assert advice.startswith("stop it, or wait until its lease ends.")
    log = Store.open(str(bench.folder / "store"), JOB).log
    log.release(1)
    run = bench.run("running")
    assert run.incarnation == 2
    assert run.stop(WAIT_S)
