"""A driver with a stream, a standby with the checkpoint lease: tables and epochs are the care of the standby while it is there."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
from incarnation_kit import Bench, eventually

from checkpoint_protocols.lease.messages import LeaseSettings
from spark_ckpt.coordination.messages import Outcome
from spark_ckpt.driver.maintenance import duty as duty_module
from spark_ckpt.driver.maintenance import upkeep as upkeep_module
from spark_ckpt.driver.maintenance.upkeep import Upkeep
from spark_ckpt.driver.standby.follower import name_of_a_wait
from spark_ckpt.errors import Fenced, StateSchemaChanged, StoreUnreachable
from spark_ckpt.store.standbys import Standbys
from spark_ckpt.store.upkeep import UpkeepLog

QUICK = LeaseSettings(least_ms=1_000, first_ms=3_000, most_ms=10_000, fresh_ms=2_000, margin_ms=200)


class Looking:
    """A lookout whose last look is never old."""

    rules = SimpleNamespace(renewals=0)

    def __init__(self, log):
        self._log = log

    @property
    def log_state(self):
        return self._log.state()


class Notes(Standbys):
    """Notes of standbys, of which some die as by kill -9."""

    dead: ClassVar[set[str]] = set()

    def withdraw(self, name):
        if name not in self.dead:
            super().withdraw(name)


class FindsDamage(Upkeep):
    def _damage(self, log_state):
        return "[CKPT_EPOCH_DAMAGED] a file is missing"


class Standing:
    """A standby's part in the upkeep, without the rest of it. `materialized`: epochs shown by it, `heard`: of its turns."""

    def __init__(self, bench, kind=Upkeep):
        self.materialized, self.heard, self.name = [], [], name_of_a_wait()
        lookout = Looking(bench.store.reopened().log)
        followed = SimpleNamespace(epoch=1, is_warm=True)
        self.store = bench.store.reopened()
        self.materialize, self.store.materialize = self.store.materialize, self._materialize
        plan = replace(bench.plan, store=SimpleNamespace(reopened=lambda: self.store))
        self.thread = kind(plan, self.name, lookout, followed, self.heard.append)
        self.thread.start()

    def _materialize(self, manifest, *arguments):
        self.materialize(manifest, *arguments)
        self.materialized.append(manifest.epoch)

    def said(self, what):
        return [event for event in self.heard if event.what == what]

    def dies(self):
        """As by kill -9: its note stays, and what it holds."""
        Notes.dead.add(self.name)
        self.thread.end()
        self.thread.join()


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setattr(duty_module, "SETTINGS", QUICK)
    monkeypatch.setattr(duty_module, "LOOK_S", 0.02)
    monkeypatch.setattr(upkeep_module, "LOOK_S", 0.01)
    monkeypatch.setattr(upkeep_module, "Standbys", Notes)
    monkeypatch.setattr(upkeep_module, "TELL_S", 0.2)
    bench = Bench(tmp_path, monkeypatch, keep_epochs=2)
    bench.ours = []
    materialize = bench.store.materialize

    def counted(manifest, *arguments):
        materialize(manifest, *arguments)
        bench.ours.append(manifest.epoch)

    monkeypatch.setattr(bench.store, "materialize", counted)
    return bench


def epoch(life, number):
    """One that is decided; numbers begin with 2, behind the sources' positions."""
    life.life.request_savepoint(f"s{number}")
    life.epoch(number, number)
    return number


def settled_by_a_standby(bench):
    """A standby that waits, and the driver's incarnation, whose first epoch the standby has materialized."""
    standby = Standing(bench)
    eventually(lambda: Standbys(bench.store.location).waiting(), "its note")
    life = bench.born()
    first = epoch(life, 2)
    eventually(lambda: first in standby.materialized, "materialized by the standby")
    return standby, life


def test_a_standby_settles_what_is_decided_and_the_driver_does_not(bench):
    standby = Standing(bench)
    eventually(lambda: Standbys(bench.store.location).waiting(), "its note")
    life = bench.born()
    newest = [epoch(life, number) for number in (2, 3, 4)][-1]
    eventually(lambda: newest in standby.materialized, "materialized by the standby")
    eventually(lambda: standby.said("done"), "its turn")
    assert bench.ours == []
    upkeep = eventually(lambda: bench.state().upkeep, "the lease")
    assert upkeep.lease.holder == standby.name
    assert life.stopped().outcome is Outcome.STOPPED
    standby.thread.leave()


def test_when_the_standby_is_killed_the_driver_takes_the_upkeep_back(bench):
    standby, life = settled_by_a_standby(bench)
    standby.dies()
    second = epoch(life, 3)
    eventually(lambda: second in bench.ours, "materialized by the driver")
    assert second not in standby.materialized
    assert life.stopped().outcome is Outcome.STOPPED


def test_a_standby_that_leaves_hands_the_upkeep_back_at_once(bench, monkeypatch):
    monkeypatch.setattr(duty_module, "SETTINGS", LeaseSettings(fresh_ms=600_000, first_ms=600_000, least_ms=600_000))
    standby, life = settled_by_a_standby(bench)
    standby.thread.leave()
    second = epoch(life, 3)
    eventually(lambda: second in bench.ours, "materialized by the driver")
    assert life.stopped().outcome is Outcome.STOPPED


def test_a_turn_that_fails_is_given_back_and_the_driver_does_it(bench):
    standby = Standing(bench)
    standby.materialize = _raises
    eventually(lambda: Standbys(bench.store.location).waiting(), "its note")
    life = bench.born()
    first = epoch(life, 2)
    eventually(lambda: first in bench.ours, "materialized by the driver")
    assert "no column" in standby.said("given up")[0].why
    assert life.stopped().outcome is Outcome.STOPPED
    standby.thread.leave()


def _raises(*_):
    raise StateSchemaChanged("no column")


def test_a_turn_that_takes_too_long_is_over_and_somebody_else_has_the_next_one(bench):
    first, held = Standing(bench), threading.Event()
    slow = first.materialize
    first.materialize = lambda *arguments: held.wait(60) and slow(*arguments)
    eventually(lambda: Standbys(bench.store.location).waiting(), "its note")
    life = bench.born()
    decided = epoch(life, 2)
    eventually(lambda: bench.state().upkeep, "the first lease")
    second = Standing(bench)
    eventually(lambda: decided in second.materialized, "materialized by the other standby")
    held.set()
    eventually(lambda: first.said("given up"), "the zombie's end")
    assert first.said("done") == []
    assert bench.ours == []
    assert life.stopped().outcome is Outcome.STOPPED
    first.thread.leave()
    second.thread.leave()


def test_epochs_are_forgotten_by_the_standby_alone(bench, monkeypatch):
    ours, theirs = [], []
    monkeypatch.setattr(bench.store, "retain", lambda *_: ours.append(1))
    standby = Standing(bench)
    retain = standby.store.retain
    standby.store.retain = lambda *arguments: theirs.append(retain(*arguments))
    eventually(lambda: Standbys(bench.store.location).waiting(), "its note")
    life = bench.born()
    for number in (2, 3, 4):
        epoch(life, number)
    eventually(lambda: 4 in standby.materialized, "the newest is materialized")
    eventually(lambda: theirs, "the standby forgets")
    assert life.stopped().outcome is Outcome.STOPPED
    assert (bench.ours, ours) == ([], [])
    standby.thread.leave()


def test_damage_is_found_by_the_standby_and_told_on_both_sides(bench):
    heard = []
    bench.heard.onUpkeep = heard.append
    standby = Standing(bench, FindsDamage)
    eventually(lambda: Standbys(bench.store.location).waiting(), "its note")
    life = bench.born()
    epoch(life, 2)
    eventually(lambda: [each for each in heard if each.what == "found damage"], "it is told here")
    (found,) = eventually(lambda: standby.said("found damage"), "it is told there, behind the log's answer")
    assert "a file is missing" in found.why
    assert life.stopped().outcome is Outcome.STOPPED
    standby.thread.leave()


def test_an_incarnation_that_begins_beside_a_standby_leaves_its_base_to_it(bench):
    """A takeover with another standby behind it: the query does not wait for tables."""
    life = bench.born()
    epoch(life, 2)
    assert life.stopped().outcome is Outcome.STOPPED
    base = bench.state().latest
    before = list(bench.ours)
    standby = Standing(bench)
    eventually(lambda: Standbys(bench.store.location).waiting(), "its note")
    life = bench.born()
    eventually(lambda: [each for each in standby.said("done") if each.epoch == base], "the base, by the standby")
    assert bench.ours == before
    assert bench.state().upkeep.ended.incarnation == 2
    assert life.stopped().outcome is Outcome.STOPPED
    standby.thread.leave()


def test_a_standby_that_takes_over_leaves_its_turn_and_its_upkeep_is_the_new_drivers(bench):
    standby, life = settled_by_a_standby(bench)
    held = threading.Event()
    materialize = standby.materialize
    standby.materialize = lambda *arguments: held.wait(60) and materialize(*arguments)
    epoch(life, 3)
    eventually(lambda: bench.state().upkeep.ended is None, "a turn that takes long")
    standby.thread.end()
    assert life.stopped().outcome is Outcome.STOPPED
    held.set()
    life = bench.born()
    newest = epoch(life, bench.state().last + 1)
    eventually(lambda: newest in bench.ours, "materialized by the new driver")
    assert life.stopped().outcome is Outcome.STOPPED


def test_an_outage_as_a_standby_begins_does_not_end_its_part(bench, monkeypatch):
    outages = [StoreUnreachable("timeout")]

    class Away(Notes):
        def forget_dead(self):
            if outages:
                raise outages.pop()
            super().forget_dead()

    monkeypatch.setattr(upkeep_module, "Standbys", Away)
    standby, life = settled_by_a_standby(bench)
    assert outages == []
    assert life.stopped().outcome is Outcome.STOPPED
    standby.thread.leave()


def test_a_turn_whose_end_the_log_refuses_is_not_told_as_done(bench, monkeypatch):
    def refused(rows, record):
        raise Fenced("another lease is the newest")

    monkeypatch.setattr(UpkeepLog, "end", refused)
    standby, life = settled_by_a_standby(bench)
    eventually(lambda: standby.said("given up"), "the end of its turn")
    assert standby.said("done") == []
    assert life.stopped().outcome is Outcome.STOPPED
    standby.thread.leave()
