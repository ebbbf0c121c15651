"""A key group's state over many incarnations equals that of a dict; planted bugs that corrupt a lost level are found."""

import hashlib
import os
from pathlib import Path

import operator_fixtures
import pytest
from group_kit import NAMES, SCHEMA, due, put, removed_above_another_level, values_in
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from operator_fixtures import OPENED, MemoryStore, cache_of, colliding, group_of, snapshot, spread

from spark_ckpt.errors import EpochDamaged
from spark_ckpt.tasks.rows import NO_TIMEOUT
from spark_ckpt.tasks.state import levels
from spark_ckpt.tasks.state.group_state import KeyGroupState
from spark_ckpt.tasks.state.levels import LevelCache


@pytest.fixture(autouse=True)
def nothing_open():
    OPENED.clear()


class KeyGroupMachine(RuleBasedStateMachine):
    """A key group through batches, snapshots, worker changes, lost caches and restores, against a dict."""

    @initialize(hasher=st.sampled_from([spread, colliding]))
    def begin(self, hasher):
        OPENED.clear()
        self.folder, self.standby = self.new_folder(), self.new_folder()
        self.before = None
        self.store, self.hasher = MemoryStore(), hasher
        self.group = group_of(SCHEMA, self.folder, self.store)
        self.model: dict[str, int] = {}
        self.timeouts: dict[str, int] = {}
        self.saved = ((), {}, {}, 0)
        self.epoch, self.now = 0, 0

    @rule(values=st.dictionaries(st.sampled_from(NAMES), st.integers(0, 99), min_size=1), data=st.data())
    def write(self, values, data):
        removed = data.draw(st.sets(st.sampled_from(sorted(values))))
        timeouts = data.draw(st.dictionaries(st.sampled_from(sorted(values)), st.integers(self.now, self.now + 9)))
        put(self.group, values, removed=removed, timeouts=timeouts, hasher=self.hasher)
        for name, value in values.items():
            self.model.pop(name, None)
            self.timeouts.pop(name, None)
            if name not in removed:
                self.model[name] = value
        self.timeouts |= timeouts

    @rule(step=st.integers(0, 6))
    def fire(self, step):
        self.now += step
        names = due(self.group, self.now, self.hasher)
        assert names == sorted(name for name, at in self.timeouts.items() if at < self.now)
        if names:
            put(self.group, dict.fromkeys(names, 5), hasher=self.hasher)
            self.model |= dict.fromkeys(names, 5)
            for name in names:
                del self.timeouts[name]

    @rule()
    def checkpoint(self):
        self.epoch += 1
        snapshot(self.group, self.store, self.epoch, full=self.epoch % self.full_every == 0)
        self.saved = (self.group.files, dict(self.model), dict(self.timeouts), self.now)

    @rule()
    def aborted_capture(self):
        self.group.capture(self.epoch + 1)

    @rule()
    def another_worker(self):
        self.group = KeyGroupState.decode(self.group.encode(), SCHEMA, self.cache(), 0)

    @rule()
    def another_host(self):
        for path in self.folder.glob("*"):
            path.unlink()
        self.before = None
        OPENED.clear()

    @rule()
    def recovery(self):
        files, model, timeouts, now = self.saved
        self.group = KeyGroupState.restored(SCHEMA, self.cache(), 0, files, self.epoch)
        self.model, self.timeouts, self.now = dict(model), dict(timeouts), now

    @rule(nearby=st.booleans())
    def a_standby_follows(self, nearby):
        files, model, timeouts, _ = self.saved
        OPENED.clear()
        cache = cache_of(SCHEMA, self.standby, self.store, self.folder if nearby else None)
        standby = KeyGroupState.restored(SCHEMA, cache, 0, files, self.epoch)
        cache.keep_only(standby.have_levels())
        OPENED.clear()
        assert values_in(standby, NAMES, self.hasher) == model
        assert standby.earliest_timeout_ms <= min(timeouts.values(), default=NO_TIMEOUT)

    @rule()
    def takeover(self):
        self.folder, self.standby = self.standby, self.folder
        self.recovery()

    @invariant()
    def state_is_the_models(self):
        assert values_in(self.group, NAMES, self.hasher) == self.model
        assert self.group.earliest_timeout_ms <= min(self.timeouts.values(), default=NO_TIMEOUT)

    @rule()
    def restart(self):
        """The next incarnation on this host, after a kill: the folder of the one before is still there."""
        self.before, self.folder = self.folder, self.new_folder()
        OPENED.clear()
        self.recovery()

    def new_folder(self):
        return Path(self.root) / os.urandom(6).hex()

    def cache(self):
        return cache_of(SCHEMA, self.folder, self.store, self.before)


OFTEN, SELDOM = 3, 11
"""Number of epochs from one full snapshot to the next."""
SEED = 6
"""With this seed each planted bug is found, as with ten or eleven of twelve seeds."""


def run_machine(root, full):
    """Run the state machine 40 times."""
    KeyGroupMachine.root, KeyGroupMachine.full_every = root, full
    quick = settings(
        max_examples=40,
        stateful_step_count=60,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        report_multiple_bugs=False,
        phases=[Phase.generate],
    )
    run_state_machine_as_test(seed(SEED)(KeyGroupMachine), settings=quick)


@pytest.mark.parametrize("full", [OFTEN, SELDOM], ids=["full files often", "seldom"])
def test_state_is_that_of_a_dict_through_snapshots_restores_and_lost_caches(tmp_path, full):
    run_machine(tmp_path, full)


def newest_file_first(patch):
    joined = levels.merged
    patch(
        levels, "merged", lambda tables, schema, drop_deletes: joined(tables[::-1], schema, drop_deletes=drop_deletes)
    )


def a_file_is_left_out(patch):
    class OneMore(LevelCache):
        def _begin_of(self, files, at_hand):
            table, count = super()._begin_of(files, at_hand)
            return table, count + (count < len(files))

    patch(operator_fixtures, "LevelCache", OneMore)


def a_level_of_other_files_is_taken(patch):
    class NamedByOldestFile(LevelCache):
        def _names(self, files):
            for _ in files:
                yield f"{hashlib.blake2b(files[0].path.encode(), digest_size=16).hexdigest()}.level"

    patch(operator_fixtures, "LevelCache", NamedByOldestFile)


@pytest.mark.parametrize("plant", [newest_file_first, a_file_is_left_out, a_level_of_other_files_is_taken])
def test_a_planted_bug_in_building_a_lost_level_is_found(tmp_path, monkeypatch, plant):
    plant(monkeypatch.setattr)
    with pytest.raises((AssertionError, EpochDamaged)):
        run_machine(tmp_path, SELDOM)


def values_with_lost_levels(folder):
    group = removed_above_another_level(folder)
    for path in folder.glob("*.level"):
        path.unlink()
    OPENED.clear()
    return values_in(group, ["k5", "k6", "k7"])


def test_a_rebuilt_level_keeps_its_deletions_of_the_level_below(tmp_path, monkeypatch):
    assert values_with_lost_levels(tmp_path / "ours") == {"k6": 60, "k7": 7}
    joined = levels.merged
    monkeypatch.setattr(
        levels, "merged", lambda tables, schema, drop_deletes: joined(tables, schema, drop_deletes=True)
    )
    assert values_with_lost_levels(tmp_path / "planted") == {"k5": 5, "k6": 60, "k7": 7}
