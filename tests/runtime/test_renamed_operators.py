"""The advice for a renamed operator keeps its state, and the start after it succeeds."""

import re
from dataclasses import replace

import pytest
from incarnation_kit import an_operator
from run_kit import Bench

from spark_ckpt.driver.maintenance.bootstrap import Origin, bootstrap
from spark_ckpt.epochs.identity import Confirmed
from spark_ckpt.epochs.records import OperatorSnapshot
from spark_ckpt.errors import GraphInvalid

OLD = OperatorSnapshot(operator="totals", key_groups=4, key_schema="k string", state_schema="total bigint")


@pytest.fixture
def bench(tmp_path, monkeypatch):
    return Bench(tmp_path, monkeypatch)


def renamed(bench, **columns):
    operator = an_operator()
    operator.name = "sums"
    vars(operator).update(columns)
    return bench.plan(operator=operator)


def newest(bench):
    log = bench.store.reopened().log
    return log.manifest(log.state().latest)


def test_the_state_of_a_renamed_operator_is_kept_by_the_advised_command(bench):
    bench.decide(1, cursors={"in": {"n": 5}}, operators={"totals": OLD})
    plan = renamed(bench)

    with pytest.raises(GraphInvalid) as refused:
        plan.check_base(newest(bench))

    store, new, old = re.search(r"spark-ckpt bootstrap (\S+) (\w+) --of (\w+)", refused.value.hint).groups()
    assert store == bench.store.location.uri
    bootstrap(bench.store.reopened(), new, Origin(bench.store.reopened(), 1, old))
    replace(plan, confirmed=Confirmed(dropped_operators=frozenset({old}))).check_base(newest(bench))
    assert newest(bench).operators["sums"].state_schema == OLD.state_schema


def test_advice_for_the_newest_epoch_restores_no_older_one_than_another_driver_has_since_committed(bench):
    bench.decide(1, cursors={"in": {"n": 5}}, operators={"totals": OLD})
    read = newest(bench)
    bench.decide(2, cursors={"in": {"n": 6}}, operators={"totals": OLD})
    with pytest.raises(GraphInvalid) as refused:
        renamed(bench).check_base(read)
    assert "job.start(accept_dropped_operator='totals')" in refused.value.hint


def test_no_command_is_advised_for_an_operator_of_other_state_or_for_an_older_epoch(bench):
    bench.decide(1, cursors={"in": {"n": 5}}, operators={"totals": OLD})
    first = newest(bench)
    with pytest.raises(GraphInvalid) as of_other_state:
        renamed(bench, state_ddl="total string").check_base(first)
    bench.decide(2, cursors={"in": {"n": 6}}, operators={"totals": OLD})
    with pytest.raises(GraphInvalid) as of_older_epoch:
        renamed(bench).check_base(first, restore=1)
    assert ["bootstrap" in each.value.hint for each in (of_other_state, of_older_epoch)] == [False, False]


def test_the_advice_repeats_the_newest_epoch_if_the_start_names_it(bench):
    """A start that names no epoch is refused if a sink lacks epochs, and that error asks for the name."""
    bench.decide(1, cursors={"in": {"n": 5}}, operators={"totals": OLD})
    with pytest.raises(GraphInvalid) as refused:
        renamed(bench).check_base(newest(bench), restore=1)
    assert "job.start(restore=1, accept_dropped_operator='totals')" in refused.value.hint
