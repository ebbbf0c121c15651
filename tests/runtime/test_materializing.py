"""How often the store's tables follow the log."""

import threading
from types import SimpleNamespace

import pytest

from spark_ckpt.driver.maintenance import materializing
from spark_ckpt.driver.maintenance.materializing import Materializing
from spark_ckpt.epochs.retention import RetentionReport

WAIT_S = 120


class Store:
    """Keeps what it was told to show."""

    def __init__(self):
        self.shown = []
        self.first = threading.Event()

    def materialize(self, manifest):
        self.shown.append(manifest)
        self.first.set()

    def retain(self, policy):
        return RetentionReport()


@pytest.fixture
def shown(monkeypatch):
    monkeypatch.setattr(materializing, "Duty", lambda *of: SimpleNamespace(is_ours=lambda: True))
    monkeypatch.setattr(
        materializing, "InputRetention", lambda plan: SimpleNamespace(follow=lambda report: None, hold=lambda: None)
    )
    store, failed = Store(), []
    plan = SimpleNamespace(
        store=store, config=SimpleNamespace(keep_epochs=3, keep_age_ms=0, keep_for_readers_ms=0, thinned_ms=0)
    )
    thread = Materializing(plan, 1, lambda event: None, failed.append)
    thread.start()
    yield store, lambda epoch: thread.ask(SimpleNamespace(manifest=epoch, consumed_segments={})), thread
    assert failed == []


def test_tables_show_an_epoch_at_once_and_of_those_that_follow_soon_after_it_the_newest(monkeypatch, shown):
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


def test_the_end_does_not_wait_for_a_rest(monkeypatch, shown):
    monkeypatch.setattr(materializing, "REST_S", 3600.0)
    store, ask, thread = shown
    ask(1)
    assert store.first.wait(WAIT_S)
    thread.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert store.shown == [1]
