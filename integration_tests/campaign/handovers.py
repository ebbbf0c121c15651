"""Planned handovers under load: the leading driver takes a final epoch and ends; its standby takes over."""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from integration_tests.broker import Broker
from integration_tests.campaign.failovers import OF_A_JOB, Pair, in_turn, wait_until_reported
from integration_tests.campaign.kafka_kills import drain, hard_job
from integration_tests.campaign.trial import Results
from integration_tests.survival.job import KafkaJob
from integration_tests.survival.process import Driver
from spark_ckpt.cli.app import exit_code

READY = ("follows", "is warm", "is warm", "is warm")


def handovers(broker: Broker, folder: Path, trials: int, seed: int, results: Results) -> None:
    """Hand over `trials` times under load, to a standby that is warm or only follows. The output is compared after every fifty."""
    draw = random.Random(seed)
    for begin in range(0, trials, OF_A_JOB):
        job = hard_job(broker.servers, folder / f"handovers-{begin}", draw.randrange(10**6))
        try:
            ready = [draw.choice(READY) for _ in range(begin, min(trials, begin + OF_A_JOB))]
            kinds = [(f"handed over when the standby '{each}'", partial(_hand_over, ready=each)) for each in ready]
            in_turn(job, "6 seconds", kinds, results)
            drain(job, results)
        finally:
            job.close()


def _hand_over(pair: Pair, ready: str) -> dict[str, float]:
    """One handover: seconds between both drivers' epochs, if the command waited for both."""
    successor = pair.stand_by()
    wait_until_reported(successor, ready)
    pair.primary.wait_for_events("committed", 1)
    answer = _handover_answer(pair.job)
    pair.primary.check_ended_well()
    former, pair.primary = pair.primary, successor
    _check(answer, former, successor)
    gap_s = answer["gap_s"]
    return {} if gap_s is None else {"gap between the epochs s": gap_s}


def _check(answer: Mapping[str, Any], former: Driver, successor: Driver) -> None:
    final, base = former.events("committed")[-1]["epoch"], successor.events("started")[0]["base"]
    assert answer["final_epoch"] == final == base, f"{answer}, the last epoch is {final}, the next begins at {base}"


def _handover_answer(job: KafkaJob) -> Mapping[str, Any]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = exit_code(["handover", str(job.store), "--json"])
    assert code == 0, f"the command ended with {code}: {out.getvalue()}"
    known: Mapping[str, Any] = json.loads(out.getvalue())
    return known
