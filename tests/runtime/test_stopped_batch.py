"""A batch that runs at the time of a stop is interrupted, and counts for nothing."""

import logging
from types import SimpleNamespace

import pytest
from pyspark.sql.types import StructType

from spark_ckpt.driver.query import stage_query
from spark_ckpt.driver.query.stage_query import StageQuery
from spark_ckpt.plan.graph import SourceNode
from spark_ckpt.spark_internals.batch_action import Interrupted, leave_interruptions_out_of_the_log


class Batch:
    """A batch's plan; its action is interrupted."""

    def __init__(self, *description):
        pass

    def run(self, frame):
        raise RuntimeError("interrupted")


@pytest.fixture
def run_batch(monkeypatch):
    """A function that runs an interrupted batch, of an incarnation that is over or not; and the reported batches."""
    monkeypatch.setattr(stage_query, "Reports", lambda context: None)
    monkeypatch.setattr(stage_query, "StageFrames", Batch)
    reported = []

    def run(*, over):
        ends = (SourceNode("in", None, StructType()),)
        stage = SimpleNamespace(ends=ends, hosts={}, marks=(), inputs=None, spark_state=None)
        spark = SimpleNamespace(sparkContext=None)
        StageQuery(spark, stage, lambda *batch: reported.append(batch), lambda: over).run_batch(None, 7)

    return run, reported


def test_a_batch_that_a_stop_interrupts_raises_as_spark_expects_and_is_not_reported(run_batch):
    run, reported = run_batch
    with pytest.raises(Interrupted):
        run(over=True)
    assert reported == []


@pytest.mark.parametrize(("error", "logged"), [(Interrupted(), 0), (RuntimeError("a bug"), 1)])
def test_py4j_logs_the_error_of_a_batch_unless_a_stop_interrupted_it(error, logged, caplog):
    leave_interruptions_out_of_the_log()
    leave_interruptions_out_of_the_log()
    logging.getLogger("py4j.clientserver").error("There was an exception while executing the proxy.", exc_info=error)
    assert len([each for each in caplog.records if each.name == "py4j.clientserver"]) == logged


def test_a_batch_that_fails_while_the_incarnation_runs_fails_the_query(run_batch):
    run, reported = run_batch
    with pytest.raises(RuntimeError, match="interrupted"):
        run(over=False)
    assert reported == []
