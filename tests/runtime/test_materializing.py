"""State tables follow the epoch log: the first epoch at once, then the newest one after a pause."""

import threading
from types import SimpleNamespace

import pytest

from spark_ckpt.driver.maintenance import delegating, materializing
from spark_ckpt.driver.maintenance.materializing import Materializing
from spark_ckpt.epochs.retention import RetentionReport
from spark_ckpt.errors import LogDamaged, StoreUnreachable

WAIT_S = 120


class Store:
    """Record the materialized manifests."""

    def __init__(self):
        self.shown = []
        self.damages = []
        self.first = threading.Event()
        self.retained = threading.Event()

    def materialize(self, manifest):
        self.shown.append(manifest)
        self.first.set()

    def retain(self, policy):
        if self.damages:
            raise self.damages.pop()
        self.retained.set()
        return RetentionReport()


class MaintenanceDelegation:
    """Maintenance without a standby."""

    def __init__(self):
        self.has_looked = threading.Event()

    def is_ours(self):
        return True

    def look(self):
        self.has_looked.set()


@pytest.fixture
def delegation():
    return MaintenanceDelegation()


@pytest.fixture
def shown(monkeypatch, delegation, request):
    monkeypatch.setattr(materializing, "WATCH_S", 0.01)
    monkeypatch.setattr(materializing, "MaintenanceDelegation", lambda *of: delegation)
    monkeypatch.setattr(
        materializing, "InputRetention", lambda plan: SimpleNamespace(follow=lambda report: None, hold=lambda: None)
    )
    monkeypatch.setattr(delegating, "LOOK_S", 0.01)
    monkeypatch.setattr(materializing, "REST_S", 0.01)
    store, failed = Store(), []
    kept = {"keep_epochs": 3, "keep_age_ms": 0, "keep_for_readers_ms": 0, "thinned_ms": 0}
    kept["store_patience_ms"] = 3_600_000
    config = SimpleNamespace(standby_interval_ms=getattr(request, "param", None), **kept)
    plan = SimpleNamespace(store=store, config=config, job="orders")
    thread = Materializing(plan, 1, lambda event: None, failed.append, lambda waits: None)
    thread.start()
    yield store, lambda epoch: thread.ask(SimpleNamespace(manifest=epoch, consumed_segments={})), thread
    assert failed == []


def test_an_epoch_is_materialized_at_once_and_then_only_the_newest_of_several(monkeypatch, shown):
    monkeypatch.setattr(materializing, "REST_S", 3600.0)
    store, ask, thread = shown
    ask(1)
    assert store.first.wait(WAIT_S)
    ask(2)
    ask(3)
    thread.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert store.shown == [1, 3]


def test_a_damaged_log_of_a_table_ends_no_job(shown):
    store, ask, thread = shown
    store.damages = [LogDamaged("the log of a table cannot be read: commit 7 is not JSON")]
    ask(1)
    thread.close()
    thread.join(WAIT_S)
    assert store.shown == [1, 1]


def test_an_outage_of_the_store_delays_maintenance_and_ends_no_incarnation(shown):
    store, ask, thread = shown
    store.damages = [StoreUnreachable("timeout"), StoreUnreachable("timeout")]
    ask(1)
    assert store.retained.wait(WAIT_S)
    thread.close()
    thread.join(WAIT_S)
    assert store.shown == [1, 1, 1]


def test_an_outage_longer_than_store_patience_ends_the_incarnation(monkeypatch, delegation):
    monkeypatch.setattr(materializing, "MaintenanceDelegation", lambda *of: delegation)
    monkeypatch.setattr(materializing, "InputRetention", lambda plan: SimpleNamespace(hold=lambda: None, follow=None))
    store, failed, outage = Store(), [], StoreUnreachable("timeout")
    store.damages = [outage]
    kept = {"keep_epochs": 3, "keep_age_ms": 0, "keep_for_readers_ms": 0, "thinned_ms": 0}
    config = SimpleNamespace(standby_interval_ms=None, store_patience_ms=0, **kept)
    plan = SimpleNamespace(store=store, config=config, job="orders")
    thread = Materializing(plan, 1, lambda event: None, failed.append, lambda waits: None)
    thread.start()
    thread.ask(SimpleNamespace(manifest=1, consumed_segments={}))
    thread.join(WAIT_S)
    assert failed == [outage]


def test_closing_does_not_wait_for_the_pause_between_epochs(monkeypatch, shown):
    monkeypatch.setattr(materializing, "REST_S", 3600.0)
    store, ask, thread = shown
    ask(1)
    assert store.first.wait(WAIT_S)
    thread.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert store.shown == [1]


@pytest.mark.parametrize(("shown", "looks"), [(1_000, True), (None, False)], indirect=["shown"])
def test_a_driver_without_work_looks_for_standbys_only_if_they_make_its_epochs_shorter(delegation, shown, looks):
    store, ask, thread = shown
    ask(1)
    assert store.first.wait(WAIT_S)
    assert delegation.has_looked.wait(WAIT_S if looks else 0.2) == looks
    thread.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()
