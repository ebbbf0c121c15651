"""The rule of a batch: new, again, rewound, or refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_ckpt.epochs.records import Holder
from spark_ckpt.epochs.restore import LATEST
from spark_ckpt.errors import BatchUnexpected, EpochNotFound, Fenced, PublishFailed, QueryForeign, StoreInUse
from spark_ckpt.outbox.protocol import AppendAcks, Begin, Commit, PublishEpoch, RunPlan, TellBranch
from spark_ckpt.outbox.rule import Accepted, BatchVerdict, owners
from tests.outbox.outbox_kit import SINKS, Host, Sinks, opened


@pytest.fixture
def log(tmp_path):
    return opened(str(tmp_path / "log"))


@pytest.fixture
def elsewhere(log, tmp_path):
    """The log, opened by another process."""
    return opened(str(tmp_path / "log"))


@pytest.fixture
def sinks():
    return Sinks()


def batches_of(sinks, sink="gold"):
    return [int(path.split("-b")[1].split("-")[0]) for path in sinks.shown[sink]]


def failing(kind, when=lambda effect: True):
    def fails(effect):
        if isinstance(effect, kind) and when(effect):
            raise PublishFailed("planted")

    return fails


def test_batches_in_order_are_committed_and_published_once(log, sinks):
    host = Host(log, sinks)
    assert [host.call(number) for number in range(4)] == [BatchVerdict.NEW] * 4
    assert all(batches_of(sinks, sink) == [0, 1, 2, 3] for sink in SINKS)
    assert host.actions == 4


def test_an_outbox_can_begin_at_any_batch_of_a_query(log, sinks):
    host = Host(log, sinks)
    assert [host.call(number) for number in (7, 8)] == [BatchVerdict.NEW] * 2


@pytest.mark.parametrize("kind", [Commit, RunPlan])
def test_a_batch_that_was_not_decided_is_new_again(log, sinks, kind):
    with pytest.raises(PublishFailed):
        Host(log, sinks, fails=failing(kind)).call(0)
    assert Host(log, sinks).call(0) is BatchVerdict.NEW
    assert batches_of(sinks) == [0]


def test_a_decided_batch_runs_its_plan_again_discards_it_and_publishes(log, sinks):
    with pytest.raises(PublishFailed):
        Host(log, sinks, fails=failing(PublishEpoch)).call(0)
    assert batches_of(sinks) == []
    again = Host(log, sinks)
    assert again.call(0) is BatchVerdict.AGAIN
    assert [effect for effect in again.effects if isinstance(effect, RunPlan)] == [RunPlan(0, 0)]
    assert batches_of(sinks) == [0]
    assert [again.call(number) for number in (1, 2)] == [BatchVerdict.NEW] * 2


def test_a_batch_without_rows_is_decided(log, sinks):
    host = Host(log, sinks)
    empty = host.do
    host.do = lambda effect: empty(effect) if not isinstance(effect, RunPlan) else _without_files(empty(effect))
    host.call(0)
    assert log.state().epochs[-1].spark_batch.number == 0
    assert Host(log, sinks).call(1) is BatchVerdict.NEW


def _without_files(staged):
    return replace(staged, files={})


def test_a_deleted_checkpoint_is_refused_and_fences_no_driver(log, sinks):
    first = Host(log, sinks)
    first.call(0)
    with pytest.raises(QueryForeign) as refused:
        Host(log, sinks).call(0, query="another")
    assert "accept_query='another'" in refused.value.hint
    assert first.call(1) is BatchVerdict.NEW


def test_a_confirmed_query_continues_the_outbox(log, sinks):
    Host(log, sinks).call(0)
    host = Host(log, sinks, Accepted(query="another"))
    assert [host.call(number, query="another") for number in (0, 1)] == [BatchVerdict.NEW] * 2
    assert Host(log, sinks).call(2, query="another") is BatchVerdict.NEW


def test_a_returning_query_continues_after_its_newest_epoch_or_restores(log, sinks):
    for number in range(3):
        Host(log, sinks).call(number)
    Host(log, sinks, Accepted(query="another")).call(0, query="another")
    for accepted in (Accepted(), Accepted(query="q")):
        with pytest.raises(QueryForeign) as refused:
            Host(log, sinks, accepted).call(2)
        assert "restore=3" in refused.value.hint
    assert Host(log, sinks, Accepted(query="q")).call(3) is BatchVerdict.NEW
    host = Host(log, sinks, Accepted(restore=3))
    assert host.call(2) is BatchVerdict.AGAIN
    assert [effect.left[0].epoch for effect in host.effects if isinstance(effect, TellBranch)] == [4]
    assert batches_of(sinks) == [0, 1, 2, 0, 3]


def test_the_newest_driver_wins(log, sinks):
    older, newer = Host(log, sinks), Host(log, sinks)
    older.call(0)
    assert newer.call(1) is BatchVerdict.NEW
    with pytest.raises(Fenced):
        older.call(1)
    assert batches_of(sinks) == [0, 1]
    assert newer.call(2) is BatchVerdict.NEW


def test_a_batch_that_another_driver_committed_concurrently_runs_again(log, sinks):
    other, late = Host(log, sinks), Host(log, sinks)
    other.call(0)
    late.fails = lambda effect: other.call(1) if isinstance(effect, Begin) else None
    assert late.call(1) is BatchVerdict.AGAIN
    assert batches_of(sinks) == [0, 1]


def test_a_rewound_query_begins_a_branch_that_names_published_epochs(log, sinks):
    host = Host(log, sinks)
    for number in range(5):
        host.call(number)
    rewound = Host(log, sinks)
    assert rewound.call(2) is BatchVerdict.REWOUND
    (branch,) = [effect for effect in rewound.effects if isinstance(effect, TellBranch)]
    assert [(left.epoch, left.batch, left.shown) for left in branch.left] == [
        (epoch, epoch - 1, tuple(sorted(SINKS))) for epoch in (3, 4, 5)
    ]
    assert rewound.call(3, offsets="other") is BatchVerdict.NEW
    assert batches_of(sinks) == [0, 1, 2, 3, 4, 2, 3]


def test_a_batch_is_looked_up_on_its_branch_not_by_its_number(log, sinks):
    host = Host(log, sinks)
    for number in range(3):
        host.call(number)
    branch = Host(log, sinks)
    branch.call(1, offsets="other")
    branch.call(2, offsets="third", before="other")
    with pytest.raises(BatchUnexpected):
        Host(log, sinks).call(2)


def test_a_query_can_be_rewound_to_before_its_outbox(log, sinks):
    host = Host(log, sinks)
    for number in (7, 8, 9):
        host.call(number)
    assert Host(log, sinks).call(7) is BatchVerdict.REWOUND


def test_the_same_batch_with_other_offsets_is_refused_with_the_epoch_to_restore(log, sinks):
    host = Host(log, sinks)
    host.call(0)
    host.call(1)
    with pytest.raises(BatchUnexpected) as refused:
        Host(log, sinks).call(1, offsets="edited")
    assert "restore=1" in refused.value.hint
    assert Host(log, sinks, Accepted(restore=1)).call(1, offsets="edited") is BatchVerdict.REWOUND


def test_a_confirmed_restore_is_for_one_start(log, sinks):
    host = Host(log, sinks)
    host.call(0)
    host.call(1)
    Host(log, sinks, Accepted(restore=1)).call(1, offsets="edited")
    with pytest.raises(BatchUnexpected) as refused:
        Host(log, sinks, Accepted(restore=1)).call(2, before="edited")
    assert "restore=" in refused.value.hint


def test_a_restore_of_a_deleted_epoch_names_the_existing_ones(log, sinks):
    host = Host(log, sinks)
    host.call(0)
    host.call(1)
    with pytest.raises(EpochNotFound) as refused:
        Host(log, sinks, Accepted(restore=7)).call(1, offsets="edited")
    assert refused.value.context["kept"] == "1, 2"
    assert "take restore= out" in refused.value.hint


def test_a_gap_between_the_log_and_the_query_is_refused(log, sinks):
    host = Host(log, sinks)
    host.call(0)
    with pytest.raises(BatchUnexpected) as refused:
        Host(log, sinks).call(2)
    assert "backup" in refused.value.hint


def test_edited_offsets_of_the_batch_before_are_refused(log, sinks):
    Host(log, sinks).call(0)
    with pytest.raises(BatchUnexpected):
        Host(log, sinks).call(1, before="edited")


def test_a_failed_sink_keeps_the_acknowledgement_of_the_other(log, sinks):
    host = Host(log, sinks)
    do = host.do

    def half(effect):
        answer = do(effect)
        return type(answer)(("alerts",), {}, PublishFailed("planted")) if isinstance(effect, PublishEpoch) else answer

    host.do = half
    with pytest.raises(PublishFailed):
        host.call(0)
    assert log.state().acked == {"alerts": 1}
    assert log.state().unacked("gold") == [1]


# -- Branches: each is reported completely before it begins, and none begins by mistake.


def branches_of(host):
    return [effect for effect in host.effects if isinstance(effect, TellBranch)]


def decided(log, sinks, *numbers):
    host = Host(log, sinks)
    for number in numbers:
        host.call(number)
    return host


def test_a_slow_second_driver_is_not_taken_for_a_rewound_query(log, sinks):
    late, other = Host(log, sinks), decided(log, sinks, 0, 1, 2)
    late.newest = 3
    with pytest.raises(Fenced):
        late.call(1)
    assert other.call(3) is BatchVerdict.NEW
    assert batches_of(sinks) == [0, 1, 2, 3]


def test_a_driver_slower_than_the_whole_retention_is_fenced(log, sinks):
    late, other = Host(log, sinks), decided(log, sinks, 0, 1, 2, 3, 4, 5)
    log.shorten(lambda log_state: {log_state.latest})
    late.newest = 6
    with pytest.raises(Fenced):
        late.call(1)
    assert other.call(6) is BatchVerdict.NEW
    late = Host(log, sinks)
    with pytest.raises(BatchUnexpected):
        late.call(1)


def test_a_driver_overtaken_at_its_begin_is_not_taken_for_a_rewound_query(log, sinks):
    other, late = decided(log, sinks, 0), Host(log, sinks)
    late.newest = 2
    late.fails = lambda effect: [other.call(1), other.call(2)] if isinstance(effect, Begin) else None
    with pytest.raises(Fenced):
        late.call(1)
    assert not branches_of(late)
    assert Host(log, sinks).call(2) is BatchVerdict.AGAIN
    assert batches_of(sinks) == [0, 1, 2]


def test_a_named_epoch_is_not_restored_over_concurrently_committed_batches(log, elsewhere, sinks):
    other, late = decided(elsewhere, sinks, 0, 1), Host(log, sinks, Accepted(restore=1))
    late.fails = lambda effect: other.call(2) if isinstance(effect, Begin) else None
    with pytest.raises(StoreInUse) as refused:
        late.call(1, offsets="edited")
    assert "start this one again" in refused.value.hint
    again = Host(log, sinks, Accepted(restore=1))
    assert again.call(1, offsets="edited") is BatchVerdict.REWOUND
    assert [left.epoch for left in branches_of(again)[0].left] == [2, 3]


def test_a_branch_is_reported_before_it_begins(log, sinks):
    decided(log, sinks, 0, 1)
    host = Host(log, sinks, Accepted(restore=1), failing(TellBranch))
    with pytest.raises(PublishFailed):
        host.call(1, offsets="edited")
    assert log.state().latest == 2
    again = Host(log, sinks, Accepted(restore=1))
    again.call(1, offsets="edited")
    assert branches_of(again)


def test_a_branch_does_not_leave_one_that_another_driver_began_concurrently(log, elsewhere, sinks):
    decided(log, sinks, 0, 1, 2, 3)
    late, other = Host(log, sinks), Host(elsewhere, sinks)
    late.fails = lambda effect: other.call(2) if isinstance(effect, Begin) and effect.target != LATEST else None
    with pytest.raises(StoreInUse):
        late.call(2)
    assert [log.state().by_id[log.state().latest].spark_batch.number, other.call(3, offsets="third")] == [
        2,
        BatchVerdict.NEW,
    ]
    assert batches_of(sinks) == [0, 1, 2, 3, 2, 3]


def test_a_replaced_driver_stops_right_after_its_begin(log, sinks):
    decided(log, sinks, 0)
    late, do = Host(log, sinks), Host.do

    def overtaken(effect):
        answer = do(late, effect)
        if isinstance(effect, Begin):
            log.begin_incarnation(Holder(host="there"), takeover=True)
            answer = type(answer)(answer.point, log.state(), answer.standing, answer.places)
        return answer

    late.do = overtaken
    with pytest.raises(Fenced):
        late.call(1)
    assert not late.actions


def test_a_restart_with_the_same_restore_does_not_publish_its_batch_twice(log, sinks):
    decided(log, sinks, 0, 1)
    first = Host(log, sinks, Accepted(restore=1))
    first.call(1, offsets="edited")
    again = Host(log, sinks, Accepted(restore=1))
    assert again.call(1, offsets="edited") is BatchVerdict.AGAIN
    assert batches_of(sinks) == [0, 1, 1]
    assert again.call(2, before="edited") is BatchVerdict.NEW


def test_an_epoch_restored_with_its_own_batch_names_its_diverged_epochs(log, sinks):
    decided(log, sinks, 0, 1, 2)
    host = Host(log, sinks, Accepted(restore=2))
    assert host.call(1) is BatchVerdict.AGAIN
    assert [left.epoch for left in branches_of(host)[0].left] == [3]
    assert host.call(2) is BatchVerdict.NEW
    assert batches_of(sinks) == [0, 1, 2, 2]


def test_a_restore_to_the_beginning_is_for_one_start_too(log, sinks):
    decided(log, sinks, 3)
    Host(log, sinks, Accepted(restore=0)).call(3, offsets="edited")
    with pytest.raises(BatchUnexpected):
        Host(log, sinks, Accepted(restore=0)).call(4, before="edited")
    with pytest.raises(QueryForeign):
        Host(log, sinks, Accepted(restore=0)).call(0, query="another")


def test_a_restore_to_the_beginning_that_committed_no_batch_is_advised_again(log, sinks):
    decided(log, sinks, 3)
    with pytest.raises(PublishFailed):
        Host(log, sinks, Accepted(restore=0), fails=failing(RunPlan)).call(3, offsets="edited")
    with pytest.raises(BatchUnexpected) as refused:
        Host(log, sinks).call(3, offsets="edited", before="edited")
    assert "with restore=0" in refused.value.hint
    assert Host(log, sinks, Accepted(restore=0)).call(3, offsets="edited", before="edited") is BatchVerdict.NEW


def test_a_foreign_query_is_refused_after_a_rewind_to_the_beginning(log, sinks):
    decided(log, sinks, 0, 1)
    with pytest.raises(PublishFailed):
        Host(log, sinks, fails=failing(RunPlan)).call(0)
    assert log.state().latest == 0
    with pytest.raises(QueryForeign):
        Host(log, sinks).call(0, query="another")
    with pytest.raises(BatchUnexpected):
        Host(log, sinks).call(1)
    assert Host(log, sinks).call(0, offsets="new") is BatchVerdict.NEW


def test_a_confirmed_query_is_rewound_to_its_beginning_and_starts_again(log, sinks):
    decided(log, sinks, 0)
    host = Host(log, sinks, Accepted(query="another"))
    assert [host.call(number, query="another") for number in (0, 1)] == [BatchVerdict.NEW] * 2
    with pytest.raises(PublishFailed):
        Host(log, sinks, fails=failing(RunPlan)).call(0, query="another")
    assert owners(log.state()) == ["another", "q"]
    assert Host(log, sinks).call(0, query="another", offsets="new") is BatchVerdict.NEW


def test_the_first_batch_of_a_confirmed_query_has_other_offsets_and_the_named_restore_works(log, sinks):
    decided(log, sinks, 0)
    Host(log, sinks, Accepted(query="another")).call(0, query="another")
    with pytest.raises(BatchUnexpected) as refused:
        Host(log, sinks).call(0, query="another", offsets="edited")
    assert "restore=1" in refused.value.hint
    host = Host(log, sinks, Accepted(restore=1))
    assert host.call(0, query="another", offsets="edited") is BatchVerdict.REWOUND


def test_a_branch_names_epochs_that_retention_dropped(log, sinks):
    decided(log, sinks, 0, 1, 2, 3, 4)
    log.shorten(lambda log_state: {1, 4, 5})
    host = Host(log, sinks, Accepted(restore=1))
    assert host.call(1) is BatchVerdict.REWOUND
    assert ([left.epoch for left in branches_of(host)[0].left], branches_of(host)[0].dropped) == ([4, 5], 3)


def test_the_first_acknowledgement_of_a_sink_rolled_back_to_its_beginning_is_recorded_at_once(log, sinks):
    decided(log, sinks, 0)
    log.begin_incarnation(Holder(host="here"), 0, takeover=True, taken_back=dict.fromkeys(SINKS, 0))
    host = Host(log, sinks, Accepted(restore=0))
    host.call(0, offsets="new")
    assert [effect.at_once for effect in host.effects if isinstance(effect, AppendAcks)] == [True]


def test_rows_that_were_staged_before_the_begin_are_committed(log, sinks):
    decided(log, sinks, 0)
    host = Host(log, sinks)
    host.known = log.state().incarnation
    assert host.call(1) is BatchVerdict.NEW
    host.known = log.state().incarnation
    assert host.call(2) is BatchVerdict.NEW
    assert batches_of(sinks) == [0, 1, 2]


def test_rows_that_another_driver_may_have_swept_are_not_committed(log, sinks):
    host, other = Host(log, sinks), decided(log, sinks, 0)
    host.known = log.state().incarnation
    other = Host(log, sinks)
    assert other.call(1) is BatchVerdict.NEW
    with pytest.raises(Fenced):
        host.call(2)
    assert batches_of(sinks) == [0, 1]
    host = Host(log, sinks)
    host.known = log.state().incarnation
    assert host.call(2) is BatchVerdict.NEW


def test_a_run_continues_in_another_process_without_the_changes_of_its_start(log, sinks):
    decided(log, sinks, 0, 1, 2)
    first = Host(log, sinks, Accepted(restore=1), run="run 1")
    assert first.call(1) is BatchVerdict.REWOUND
    assert Host(log, sinks, Accepted(restore=1), run="run 1").call(2) is BatchVerdict.NEW
    assert batches_of(sinks) == [0, 1, 2, 1, 2]


def test_another_process_of_a_replaced_run_is_fenced(log, sinks):
    assert Host(log, sinks, run="run 1").call(0) is BatchVerdict.NEW
    assert Host(log, sinks, run="run 2").call(1) is BatchVerdict.NEW
    with pytest.raises(Fenced):
        Host(log, sinks, run="run 1").call(2)
    assert Host(log, sinks, run="run 2").call(2) is BatchVerdict.NEW
