"""A command that changes state between two runs reads the state of the epoch that it continues from, not of its first read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from store_world import ELSEWHERE, JOB

from spark_ckpt.driver.maintenance import spark_partitions
from spark_ckpt.driver.maintenance.bootstrap import Origin, bootstrap
from spark_ckpt.driver.maintenance.rescale import rescale
from spark_ckpt.driver.maintenance.spark_partitions import repartition
from spark_ckpt.epochs.records import Manifest, OperatorSnapshot, SparkState
from spark_ckpt.errors import ConfigInvalid, EpochNotFound
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.spark_state import Known, Moment
from spark_ckpt.store.store import Store


class Driver:
    """A job whose driver commits its last epoch, and frees its lease, between a command's read and its incarnation."""

    def __init__(self, folder: Path) -> None:
        self.store = Store.open(str(folder), JOB)
        self.log = self.store.reopened().log

    def commit(self, **fields: object) -> None:
        point = self.log.begin_incarnation(ELSEWHERE, "latest")
        ids = {"epoch": point.last + 1, "incarnation": point.incarnation, "attempt": f"a{point.last}", "created_ms": 0}
        line = {"base": point.manifest.epoch, "previous": point.last}
        self.log.commit_epoch(Manifest.model_validate({"job": JOB, **ids, **line, **fields}))
        self.log.release(point.incarnation)

    def commit_before_the_command(self, monkeypatch: pytest.MonkeyPatch, **fields: object) -> None:
        begin = EpochLog.begin_incarnation

        def after_the_driver(log: EpochLog, *arguments: Any, **options: Any) -> object:
            monkeypatch.setattr(EpochLog, "begin_incarnation", begin)
            self.commit(**fields)
            return begin(log, *arguments, **options)

        monkeypatch.setattr(EpochLog, "begin_incarnation", after_the_driver)


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path / "store")


def snapshot(operator: str, key_groups: int = 4) -> OperatorSnapshot:
    return OperatorSnapshot(operator=operator, key_groups=key_groups, key_schema="k STRING", state_schema="v BIGINT")


def of_spark(store: Store, batch: int) -> SparkState:
    """State of Spark without files, after a batch."""
    moment = Moment(1, batch, "{}", "v1", "RocksDBStateStoreProvider", 1, 2, ("dedupe",))
    return store.spark_states.keep(Path(store.location.uri), [], moment, Known())


def test_the_state_of_sparks_operators_and_the_cursors_are_of_the_same_epoch(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Taken(Exception):
        """Carries the state that is repartitioned, and the epoch whose cursors stay."""

    def taken(
        states: object, checkpoint: object, incarnation: object, base: SparkState, epoch: int, *_: object
    ) -> None:
        raise Taken(base.batch, epoch)

    monkeypatch.setattr(spark_partitions, "CheckpointState", taken)
    driver.commit(spark_state=of_spark(driver.store, 7))
    driver.commit_before_the_command(monkeypatch, spark_state=of_spark(driver.store, 8))
    with pytest.raises(Taken) as found:
        repartition(driver.store, cast("Callable[[], Any]", SimpleNamespace), 4)
    assert found.value.args == (8, 2)


def test_a_new_operator_replaces_no_state_committed_in_between(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.commit(operators={"sums": snapshot("sums")})
    driver.commit_before_the_command(monkeypatch, operators={name: snapshot(name) for name in ("sums", "new")})
    with pytest.raises(ConfigInvalid, match="'new' has state in epoch 2"):
        bootstrap(driver.store, "new", Origin(driver.store, 1, "sums"))
    assert driver.log.state().latest == 2


def test_an_operator_dropped_in_between_is_not_repartitioned(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.commit(operators={"sums": snapshot("sums")})
    driver.commit_before_the_command(monkeypatch, operators={})
    with pytest.raises(ConfigInvalid, match="epoch 2 has no operator 'sums'"):
        rescale(driver.store, "sums", 8)


def test_advice_for_the_state_of_sparks_own_operator_does_not_lead_back_to_it(driver: Driver) -> None:
    driver.commit(operators={"sums": snapshot("sums")}, spark_state=of_spark(driver.store, 7))
    with pytest.raises(EpochNotFound, match="'0:dedupe' of epoch 1 is Spark's own") as refused:
        bootstrap(driver.store, "new", Origin(driver.store, 1, "0:dedupe"))
    assert refused.value.context["operators"] == "sums"
