"""A job that starts on an adopted query's epoch must use its names; else the error lists them and the command to run."""

import pytest
from incarnation_kit import an_operator
from run_kit import STOPPED, Bench, ended

from spark_ckpt.epochs.records import OperatorSnapshot
from spark_ckpt.epochs.restore import ADOPTING
from spark_ckpt.errors import EpochNotFound, GraphInvalid
from spark_ckpt.store.holder import current_holder

SNAPSHOT = OperatorSnapshot(operator="totals", key_groups=4, key_schema="k string", state_schema="total bigint")


@pytest.fixture
def bench(tmp_path, monkeypatch):
    return Bench(tmp_path, monkeypatch)


def test_a_source_by_another_name_is_refused_with_both_names(bench):
    bench.decide(1, reason="adopt", cursors={"clicks": {"n": 5}})
    with pytest.raises(GraphInvalid, match="cursors of sources that the job has not: clicks") as refused:
        bench.run()
    assert "the job has: in." in refused.value.hint
    assert "--source NAME=NUMBER" in refused.value.hint


def test_an_operator_by_another_name_is_refused_with_both_names(bench):
    bench.decide(1, reason="adopt", cursors={"in": {"n": 5}}, operators={"totals": SNAPSHOT})
    other = an_operator()
    other.name = "sums"
    with pytest.raises(GraphInvalid, match="state of operator 'totals', which the job has not") as refused:
        bench.run(operator=other)
    assert "the job has: sums. Call the operator 'totals'" in refused.value.hint
    assert "--operator NAME=NUMBER" in refused.value.hint


def test_a_job_with_the_querys_names_continues_from_its_epoch(bench):
    bench.decide(1, reason="adopt", cursors={"in": {"n": 5}})
    assert ended(bench.run(STOPPED)) is None
    assert [each.base for each in bench.incarnations] == [1]


def test_a_store_with_a_partly_adopted_query_is_refused(bench):
    log = bench.store.log
    log.release(log.begin_incarnation(current_holder(ADOPTING), 0).incarnation)
    with pytest.raises(EpochNotFound, match="was being adopted"):
        bench.run(STOPPED)
    assert (bench.incarnations, log.state().incarnation) == ([], 1)
