"""With the defaults, yesterday's epoch is kept, the number of epochs is bounded, and a retention pass has a constant cost."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_world import World

from spark_ckpt.config import JobConfig
from spark_ckpt.driver.maintenance.materializing import retention_of
from spark_ckpt.epochs.epoch_status import statuses
from spark_ckpt.epochs.recovery import behind
from spark_ckpt.epochs.retention import MOST_RECENT, Retention, thinned

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
DAYS_MS = 48 * HOUR_MS
MOST = MOST_RECENT + 61 + 49
NOW_MS = 1_700_000_000_000


def brief(epoch, created_ms, index=0, after=0):
    return SimpleNamespace(epoch=epoch, created_ms=created_ms, index=index, after=after)


def kept(epochs, now_ms, rule=thinned, until_ms=DAYS_MS):
    found = rule(sorted(epochs, key=lambda each: -each.epoch), until_ms, now_ms)
    return [each for each in epochs if each.epoch in found]


class Job:
    """A job's epochs under the default retention, one epoch each `interval_ms`."""

    def __init__(self, interval_ms, days):
        policy = retention_of(JobConfig())
        self.epochs, self.passes, self.rewritten, self.most = [], 0, 0, 0
        for number in range(1, days * 24 * HOUR_MS // interval_ms + 1):
            self.now_ms = NOW_MS + number * interval_ms
            self.epochs.append(brief(number, self.now_ms))
            newest = {each.epoch for each in self.epochs[-policy.keep_last :]}
            keep = [each for each in kept(self.epochs, self.now_ms) if each.epoch not in newest]
            if policy.drops(len(keep) + len(newest), len(self.epochs) - len(keep) - len(newest)):
                self.epochs = [*keep, *self.epochs[-policy.keep_last :]]
                self.passes, self.rewritten = self.passes + 1, self.rewritten + len(self.epochs)
            self.most = max(self.most, len(self.epochs))
        self.taken = number


@pytest.fixture(scope="module")
def job():
    return Job(interval_ms=30_000, days=3)


def test_yesterdays_epoch_exists_with_the_defaults(job):
    ages_h = [(job.now_ms - each.created_ms) / HOUR_MS for each in job.epochs]
    for hours in range(1, 48):
        assert any(hours <= age <= hours + 1 for age in ages_h), hours


def test_the_last_hour_has_an_epoch_a_minute_and_its_newest_ones_all(job):
    ages_min = [(job.now_ms - each.created_ms) / MINUTE_MS for each in job.epochs]
    assert all(any(minute <= age <= minute + 1 for age in ages_min) for minute in range(59))
    assert [each.epoch for each in job.epochs[-100:]] == list(range(job.taken - 99, job.taken + 1))


def test_the_number_of_kept_epochs_is_bounded(job):
    assert job.most <= MOST * 5 / 4 + 1


def test_the_cost_of_dropping_an_epoch_does_not_grow_with_the_kept_ones(job):
    """A pass rewrites the rows of all kept epochs, so it waits until there are a quarter more."""
    assert job.rewritten <= 5 * job.taken


def test_an_epoch_per_batch_keeps_no_more():
    often = [brief(number, NOW_MS + number * 300) for number in range(40_000)]
    assert MOST_RECENT < len(kept(often, often[-1].created_ms)) <= MOST


TIMES = st.lists(
    st.sampled_from([0, 1_000, 20_000, 59_000, 61_000, 20 * MINUTE_MS, 70 * MINUTE_MS]), min_size=1, max_size=60
)


def after_passes(gaps, every, rule):
    """Return epochs after a pass each `every` epochs, and those that one pass at the end keeps."""
    dropping, whole, now_ms = [], [], NOW_MS
    for number, gap_ms in enumerate(gaps, start=1):
        now_ms += gap_ms
        dropping.append(brief(number, now_ms))
        whole.append(dropping[-1])
        if number % every == 0:
            dropping = kept(dropping, now_ms, rule)
    return kept(dropping, now_ms, rule), kept(whole, now_ms, rule)


@given(gaps=TIMES, every=st.integers(1, 7))
@settings(deadline=None, database=None)
def test_a_pass_drops_nothing_that_a_later_one_would_keep(gaps, every):
    often, once = after_passes(gaps, every, thinned)
    assert often == once
    assert len(once) <= MOST


def test_a_rule_that_keeps_every_second_epoch_loses_yesterday():
    """The bug that this property finds: each pass halves the result of earlier ones."""

    def every_second(lineage, until_ms, now_ms):
        return {each.epoch for each in lineage[:10]} | {each.epoch for each in lineage[10::2]}

    often, once = after_passes([20 * MINUTE_MS] * 60, 1, every_second)
    assert often != once


def test_explicit_settings_keep_no_more():
    assert retention_of(JobConfig()).thinned_ms == DAYS_MS
    assert retention_of(JobConfig(keep_epochs=2)).thinned_ms == 0
    assert retention_of(JobConfig(keep_age="1 hour")).thinned_ms == 0
    assert retention_of(JobConfig(keep_epochs=2, keep_thinned="1 day")).thinned_ms == DAYS_MS // 2
    assert retention_of(JobConfig(keep_thinned="0 seconds")).thinned_ms == 0


# -- programs with common lines keep the same ones

LINE_S = 10
BEGAN_S = NOW_MS // 1000 // 3600 * 3600
HOURS = 5


def taken(gaps_s, early_s):
    """Return epochs of a program with an index: each serves the lines since the one before it.

    `early_s`: the index comes from a sender whose clock is ahead.
    """
    now_s, after, epochs = BEGAN_S, 0, []
    while now_s < BEGAN_S + HOURS * 3600:
        now_s += gaps_s[len(epochs) % len(gaps_s)]
        index = max(after, (now_s + early_s) // LINE_S * LINE_S)
        epochs.append(brief(len(epochs) + 1, 1000 * now_s, index, after))
        after = index
    return epochs


def lines_kept(gaps_s, early_s, passes, rule):
    """Return starts of hours whose line a program still has, after a retention pass at each of some moments, in seconds."""
    epochs = taken(gaps_s, early_s)
    for moment_s in (*sorted(passes), BEGAN_S + HOURS * 3600):
        done = [each for each in epochs if each.created_ms <= 1000 * moment_s]
        epochs = [*kept(done, 1000 * moment_s, rule), *epochs[len(done) :]]
    hours = range(BEGAN_S + 3600, BEGAN_S + HOURS * 3600, 3600)
    return [hour for hour in hours if any(each.after < hour <= each.index for each in epochs)]


@given(
    gaps_s=st.lists(st.sampled_from([3, 9, 40, 700, 4000]), min_size=1, max_size=5),
    early_s=st.sampled_from([0, 7, 120, 3700]),
    passes=st.lists(st.integers(BEGAN_S, BEGAN_S + HOURS * 3600), max_size=5),
)
@settings(deadline=None, database=None)
def test_each_program_keeps_the_first_line_of_each_hour(gaps_s, early_s, passes):
    assert len(lines_kept(gaps_s, early_s, passes, thinned)) == HOURS - 1


def test_a_rule_by_the_time_of_the_epoch_loses_lines():
    """The bug that this property finds: the first epoch of an hour need not be the one that serves its first line."""

    def by_time(lineage, until_ms, now_ms):
        return thinned([brief(each.epoch, each.created_ms) for each in lineage], until_ms, now_ms)

    assert len(lines_kept([9, 40], 120, [], by_time)) < HOURS - 1


# -- an epoch before a gap stays an ancestor of those after it

POLICY = Retention(keep_last=1, slack=0, thinned_ms=DAYS_MS)


@pytest.fixture
def world(tmp_path):
    """Create epochs 1 to 8, half an hour apart; retention dropped every second one."""
    world = World(tmp_path / "store")
    world.clock.ms = NOW_MS // HOUR_MS * HOUR_MS
    world.begin()
    for number in range(1, 9):
        world.epoch({"a": number}, full=True, acked=number - 1)
        world.clock.ms += HOUR_MS // 2
    world.clock.ms += HOUR_MS
    world.store.retain(POLICY)
    return world


def test_epochs_before_a_gap_are_published_epochs_of_the_branch(world):
    log_state = world.store.reopened().log.state()
    assert [each.epoch for each in log_state.epochs] == [1, 3, 5, 7, 8]
    assert [each.epoch for each in log_state.ancestry()] == [8, 7, 5, 3, 1]
    assert [each.epoch for each in log_state.lineage()] == [8, 7]
    assert set(statuses(log_state, world.clock.ms, True).values()) == {"published", "unpublished"}
    assert statuses(log_state, world.clock.ms, True)[1] == "published"


def test_epochs_after_a_gap_are_descendants_of_an_epoch_before_it(world):
    log_state = world.store.log.state()
    assert log_state.diverged(3) == []
    found, complete = behind(log_state, 3)
    assert ([each.epoch for each in found], complete) == ([5, 7, 8], False)


def test_a_restored_epoch_before_a_gap_begins_a_branch(world):
    point = world.begin(3)
    assert point.unpublished == {}
    world.epoch({"b": 1}, full=True)
    world.store.retain(POLICY)
    log_state = world.store.reopened().log.state()
    assert [each.epoch for each in log_state.ancestry()] == [9, 3, 1]
    assert {epoch for epoch, word in statuses(log_state, world.clock.ms, True).items() if word == "abandoned"} <= {
        5,
        7,
        8,
    }
    assert world.state_at(3) == {"a": 3}


def test_an_accepted_loss_leaves_epochs_before_a_gap_published(world):
    world.store.log.release(1)
    world.store.log.accept_loss(12, 1)
    unpublished = world.store.log.state().unpublished
    assert not {1, 3, 5} & {epoch for epochs in unpublished.values() for epoch in epochs}
