"""A standby with the maintenance lease materializes state tables and deletes old epochs, instead of the streaming driver."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
from incarnation_kit import Bench, eventually

from checkpoint_protocols.lease.messages import LeaseSettings
from spark_ckpt.coordination.messages import Outcome
from spark_ckpt.driver.maintenance import delegating, standby_turns
from spark_ckpt.driver.maintenance.standby_turns import StandbyMaintenance
from spark_ckpt.driver.standby.follower import name_of_a_wait
from spark_ckpt.errors import Fenced, StateSchemaChanged, StoreUnreachable
from spark_ckpt.store.maintenance_lease import MaintenanceLog
from spark_ckpt.store.standbys import Standbys

PATIENT = LeaseSettings(least_ms=1_000, first_ms=600_000, most_ms=600_000, fresh_ms=600_000, margin_ms=200)
"""No test on a loaded machine takes so long that its standby counts as dead or slow."""
IMPATIENT = LeaseSettings(least_ms=1_000, first_ms=3_000, most_ms=10_000, fresh_ms=2_000, margin_ms=200)
"""A standby that is dead or slow loses the lease soon."""


class Looking:
    """A lookout whose last read is never old."""

    rules = SimpleNamespace(renewals=0)

    def __init__(self, log):
        self._log = log

    @property
    def log_state(self):
        return self._log.state()


class Notes(Standbys):
    """Notes of standbys; those in `dead` stay, as after kill -9."""

    dead: ClassVar[set[str]] = set()

    def withdraw(self, name):
        if name not in self.dead:
            super().withdraw(name)


class FindsDamage(StandbyMaintenance):
    def _damage(self, log_state):
        return "[CKPT_EPOCH_DAMAGED] a file is missing"


class StandbyMaintenance:
    """A standby's maintenance thread alone. `materialized`: epochs that it materialized, `received`: its events."""

    def __init__(self, bench, kind=StandbyMaintenance):
        self.materialized, self.received, self.name = [], [], name_of_a_wait()
        lookout = Looking(bench.store.reopened().log)
        followed = SimpleNamespace(epoch=1, is_warm=True)
        self.store = bench.store.reopened()
        self.materialize, self.store.materialize = self.store.materialize, self._materialize
        plan = replace(bench.plan, store=SimpleNamespace(reopened=lambda: self.store))
        self.thread = kind(plan, self.name, lookout, followed, self.received.append)
        self.thread.start()

    def _materialize(self, manifest, *arguments):
        self.materialize(manifest, *arguments)
        self.materialized.append(manifest.epoch)

    def events_of(self, what):
        return [event for event in self.received if event.what == what]

    def die(self):
        """Die as by kill -9: the note and the lease stay."""
        Notes.dead.add(self.name)
        self.thread.end()
        self.thread.join()


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setattr(delegating, "SETTINGS", PATIENT)
    monkeypatch.setattr(delegating, "LOOK_S", 0.02)
    monkeypatch.setattr(standby_turns, "LOOK_S", 0.01)
    monkeypatch.setattr(standby_turns, "Standbys", Notes)
    monkeypatch.setattr(standby_turns, "TELL_S", 0.2)
    bench = Bench(tmp_path, monkeypatch, keep_epochs=2)
    bench.ours = []
    materialize = bench.store.materialize

    def counted(manifest, *arguments):
        materialize(manifest, *arguments)
        bench.ours.append(manifest.epoch)

    monkeypatch.setattr(bench.store, "materialize", counted)
    return bench


def epoch(incarnation, number):
    """Commit an epoch; numbers begin with 2, after the initial epoch."""
    incarnation.driver.request_savepoint(f"s{number}")
    incarnation.epoch(number, number)
    return number


def settled_by_a_standby(bench):
    """Return a waiting standby, and the driver's incarnation, whose first epoch the standby has materialized."""
    standby = StandbyMaintenance(bench)
    eventually(lambda: Standbys(bench.store.location).waiting(), "its note")
    incarnation = bench.begin()
    first = epoch(incarnation, 2)
    eventually(lambda: first in standby.materialized, "materialized by the standby")
    return standby, incarnation


def test_a_standby_materializes_committed_epochs_instead_of_the_driver(bench):
    standby = StandbyMaintenance(bench)
    eventually(lambda: Standbys(bench.store.location).waiting(), "its note")
    incarnation = bench.begin()
    newest = [epoch(incarnation, number) for number in (2, 3, 4)][-1]
    eventually(lambda: newest in standby.materialized, "materialized by the standby")
    eventually(lambda: standby.events_of("done"), "its turn")
    assert bench.ours == []
    maintenance = eventually(lambda: bench.state().maintenance, "the lease")
    assert maintenance.lease.holder == standby.name
    assert incarnation.stopped().outcome is Outcome.STOPPED
    standby.thread.leave()


def test_when_the_standby_is_killed_the_driver_does_the_maintenance_again(bench, monkeypatch):
    monkeypatch.setattr(delegating, "SETTINGS", IMPATIENT)
    standby, incarnation = settled_by_a_standby(bench)
    standby.die()
    second = epoch(incarnation, 3)
    eventually(lambda: second in bench.ours, "materialized by the driver")
    assert second not in standby.materialized
    assert incarnation.stopped().outcome is Outcome.STOPPED


def test_a_standby_that_leaves_hands_the_maintenance_over_at_once(bench):
    standby, incarnation = settled_by_a_standby(bench)
    standby.thread.leave()
    second = epoch(incarnation, 3)
    eventually(lambda: second in bench.ours, "materialized by the driver")
    assert incarnation.stopped().outcome is Outcome.STOPPED


def test_the_driver_takes_over_maintenance_that_failed(bench):
    standby = StandbyMaintenance(bench)
    standby.materialize = _raises
    eventually(lambda: Standbys(bench.store.location).waiting(), "its note")
    incarnation = bench.begin()
    first = epoch(incarnation, 2)
    eventually(lambda: first in bench.ours, "materialized by the driver")
    assert "no column" in standby.events_of("failed")[0].why
    assert incarnation.stopped().outcome is Outcome.STOPPED
    standby.thread.leave()


def _raises(*_):
    raise StateSchemaChanged("no column")


def test_another_standby_takes_over_maintenance_that_takes_too_long(bench, monkeypatch):
    monkeypatch.setattr(delegating, "SETTINGS", replace(PATIENT, first_ms=3_000))
    first, held = StandbyMaintenance(bench), threading.Event()
    slow = first.materialize
    first.materialize = lambda *arguments: held.wait(60) and slow(*arguments)
    eventually(lambda: Standbys(bench.store.location).waiting(), "its note")
    incarnation = bench.begin()
    committed = epoch(incarnation, 2)
    eventually(lambda: bench.state().maintenance, "the first lease")
    second = StandbyMaintenance(bench)
    eventually(lambda: committed in second.materialized, "materialized by the other standby")
    held.set()
    eventually(lambda: first.events_of("failed"), "the zombie's end")
    assert first.events_of("done") == []
    assert bench.ours == []
    assert incarnation.stopped().outcome is Outcome.STOPPED
    first.thread.leave()
    second.thread.leave()


def test_only_the_standby_deletes_old_epochs(bench, monkeypatch):
    ours, theirs = [], []
    monkeypatch.setattr(bench.store, "retain", lambda *_: ours.append(1))
    standby = StandbyMaintenance(bench)
    retain = standby.store.retain
    standby.store.retain = lambda *arguments: theirs.append(retain(*arguments))
    eventually(lambda: Standbys(bench.store.location).waiting(), "its note")
    incarnation = bench.begin()
    for number in (2, 3, 4):
        epoch(incarnation, number)
    eventually(lambda: 4 in standby.materialized, "the newest is materialized")
    eventually(lambda: theirs, "the standby forgets")
    assert incarnation.stopped().outcome is Outcome.STOPPED
    assert (bench.ours, ours) == ([], [])
    standby.thread.leave()


def test_damage_found_by_the_standby_is_reported_by_both_drivers(bench):
    received = []
    bench.listener.onMaintenance = received.append
    standby = StandbyMaintenance(bench, FindsDamage)
    eventually(lambda: Standbys(bench.store.location).waiting(), "its note")
    incarnation = bench.begin()
    epoch(incarnation, 2)
    eventually(lambda: [each for each in received if each.what == "found damage"], "the driver's event")
    (found,) = eventually(lambda: standby.events_of("found damage"), "the standby's event, after the log's answer")
    assert "a file is missing" in found.why
    assert incarnation.stopped().outcome is Outcome.STOPPED
    standby.thread.leave()


def test_an_incarnation_with_a_standby_leaves_its_base_epoch_to_it(bench):
    """A takeover with a second standby that waits: the query does not wait for tables."""
    incarnation = bench.begin()
    epoch(incarnation, 2)
    assert incarnation.stopped().outcome is Outcome.STOPPED
    base = bench.state().latest
    before = list(bench.ours)
    standby = StandbyMaintenance(bench)
    eventually(lambda: Standbys(bench.store.location).waiting(), "its note")
    incarnation = bench.begin()
    eventually(lambda: [each for each in standby.events_of("done") if each.epoch == base], "the base, by the standby")
    assert bench.ours == before
    assert bench.state().maintenance.ended.incarnation == 2
    assert incarnation.stopped().outcome is Outcome.STOPPED
    standby.thread.leave()


def test_a_standby_that_takes_over_continues_its_maintenance_as_the_driver(bench):
    standby, incarnation = settled_by_a_standby(bench)
    held = threading.Event()
    materialize = standby.materialize
    standby.materialize = lambda *arguments: held.wait(60) and materialize(*arguments)
    epoch(incarnation, 3)
    eventually(lambda: bench.state().maintenance.ended is None, "a turn that takes long")
    standby.thread.end()
    assert incarnation.stopped().outcome is Outcome.STOPPED
    held.set()
    incarnation = bench.begin()
    newest = epoch(incarnation, bench.state().last + 1)
    eventually(lambda: newest in bench.ours, "materialized by the new driver")
    assert incarnation.stopped().outcome is Outcome.STOPPED


def test_an_outage_as_a_standby_begins_does_not_end_its_maintenance(bench, monkeypatch):
    outages = [StoreUnreachable("timeout")]

    class Away(Notes):
        def forget_dead(self):
            if outages:
                raise outages.pop()
            super().forget_dead()

    monkeypatch.setattr(standby_turns, "Standbys", Away)
    standby, incarnation = settled_by_a_standby(bench)
    assert outages == []
    assert incarnation.stopped().outcome is Outcome.STOPPED
    standby.thread.leave()


def test_maintenance_whose_end_the_log_refuses_is_not_reported_as_done(bench, monkeypatch):
    def refused(rows, record):
        raise Fenced("another lease is the newest")

    monkeypatch.setattr(MaintenanceLog, "end", refused)
    standby, incarnation = settled_by_a_standby(bench)
    eventually(lambda: standby.events_of("failed"), "the end of its turn")
    assert standby.events_of("done") == []
    assert incarnation.stopped().outcome is Outcome.STOPPED
    standby.thread.leave()


def test_maintenance_of_an_epoch_that_is_dropped_meanwhile_is_done(bench):
    """The job commits more epochs than it keeps while the standby updates the tables."""
    standby, materialize = StandbyMaintenance(bench), bench.store.reopened().materialize

    def slow(manifest, *arguments):
        materialize(manifest, *arguments)
        epoch(incarnation, 3)
        bench.store.log.drop_savepoint("s2")
        bench.store.log.shorten(lambda log_state: {log_state.latest})
        standby.materialize = materialize

    standby.materialize = slow
    eventually(lambda: Standbys(bench.store.location).waiting(), "its note")
    incarnation = bench.begin()
    epoch(incarnation, 2)
    eventually(lambda: standby.received, "the end of its turn")
    assert (standby.received[0].what, standby.received[0].epoch) == ("done", 2)
    assert 2 not in bench.state().by_id
    assert incarnation.stopped().outcome is Outcome.STOPPED
    standby.thread.leave()


def test_in_an_outage_a_standby_writes_its_note_no_more_often_than_before(bench, monkeypatch):
    monkeypatch.setattr(standby_turns, "TELL_S", 3600.0)
    written, looks = [], []

    class Away(Notes):
        def write(self, name, note):
            written.append(name)
            raise StoreUnreachable("timeout")

    class Looks(Looking):
        @property
        def log_state(self):
            looks.append(1)
            return super().log_state

    monkeypatch.setattr(standby_turns, "Standbys", Away)
    monkeypatch.setitem(globals(), "Looking", Looks)
    standby = StandbyMaintenance(bench)
    eventually(lambda: len(looks) > 20, "further looks")
    assert len(written) == 1
    standby.thread.leave()
