"""Two drivers of one job: the replaced one commits nothing and publishes nothing."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from integration_tests.survival.job import KafkaJob
from integration_tests.survival.process import Driver
from spark_ckpt.errors import StoreInUse

pytestmark = [pytest.mark.kafka, pytest.mark.kill]
FENCED = "CKPT_FENCED"


def _check_fenced(job: KafkaJob, zombie: Driver, seen: int) -> None:
    """The zombie ends by itself, reports the reason, and has committed and published nothing since it was frozen."""
    assert zombie.wait_for_end() == 4, zombie.log()
    assert [event["condition"] for event in zombie.events("failed")] == [FENCED], zombie.log()
    later = [event for event in zombie.events()[seen:] if event["event"] == "committed"]
    assert not later, later
    job.check_exact()


def test_a_zombie_is_fenced_after_a_takeover(job: KafkaJob, spark: SparkSession) -> None:
    """Frozen with an open transaction, one request before its commit; a polite second driver is refused."""
    once = job.lives.folder / "once"
    once.mkdir()
    environment = {"SPARK_CKPT_FAILPOINT": "PRE_COMMIT:stop", "SPARK_CKPT_FAILPOINT_ONCE": str(once)}
    job.ledger.write(8_000)
    with job.lives.start("--lease", "10 minutes", environment=environment) as zombie:
        zombie.wait_for((once / "PRE_COMMIT").exists, "the transaction is about to be committed")
        zombie.stop()
        seen = len(zombie.events())
        job.ledger.write(8_000)

        with pytest.raises(StoreInUse):
            job.lives.drain_on(spark)
        job.lives.drain_on(spark, "--takeover")
        zombie.resume()

        _check_fenced(job, zombie, seen)
