"""A stop by a signal whose final epoch does not come: its time limit, its error, its exit code."""

from __future__ import annotations

import re
import subprocess
import sys
import threading

import pytest
from incarnation_kit import JOB, WAIT_S
from run_kit import STOPPED, Bench

from spark_ckpt import errors
from spark_ckpt.config import JobConfig
from spark_ckpt.coordination.patience import stop_bound_ms
from spark_ckpt.driver.progress import Progress
from spark_ckpt.driver.supervisor import Supervisor
from spark_ckpt.errors import CkptError, DrainStopped, StopTimedOut


@pytest.fixture
def bench(tmp_path, monkeypatch):
    return Bench(tmp_path, monkeypatch)


def test_the_setting_that_the_error_of_a_cut_stop_names_raises_the_limit(bench):
    hangs = threading.Event()
    run = bench.run(lambda: STOPPED if hangs.wait(WAIT_S) else None, stop_timeout="50 ms")
    bench.incarnations[0].abandon = lambda close_within_s: hangs.set()
    run.stop_for_signal("SIGTERM")
    [(name, value)] = re.findall(r'Job\(\.\.\., (\w+)="([^"]+)"\)', run.exception().hint)
    assert JobConfig.of({name: value}, {}).stop_timeout_ms == 100


@pytest.mark.parametrize("error", [StopTimedOut, DrainStopped])
def test_a_program_that_does_not_catch_the_error_of_a_signal_ends_with_its_code_and_no_traceback(error):
    text = f"from spark_ckpt.errors import {error.__name__} as Kind; raise Kind('no final epoch', hint='start again')"
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (error.exit_code, "", "")


@pytest.mark.parametrize("error", [StopTimedOut, DrainStopped])
def test_an_error_of_a_signal_has_its_own_exit_code(error):
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, CkptError)]
    assert [each for each in kinds if each.exit_code == error.exit_code] == [error]


def test_the_bound_of_a_stop_follows_the_longest_recent_batch(bench):
    progress = Progress(JOB)
    for batch, duration_ms in enumerate((500, 30_000, 700)):
        progress.add(batch, 1, 0, {}, duration_ms, {}, {}, {})
    assert stop_bound_ms(None, progress.longest_batch_ms()) == 90_000
    assert stop_bound_ms(None, 100) == 20_000
    assert stop_bound_ms(50, progress.longest_batch_ms()) == 50, "the configured limit has priority"
    assert Supervisor(bench.plan(), [], progress, {}).stop_bound_s == 90
