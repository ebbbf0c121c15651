"""Bugs planted in the protocol and the rule of an outbox, in its host, and in what Spark does with it.

Each changes shipped code, or the lab's host, for one test. The first ones are faults that the protocol had.
"""

from __future__ import annotations

from dataclasses import replace

from checkpoint_lab import outbox_driver, spark_driver
from checkpoint_lab.outbox_driver import OutboxDriver
from checkpoint_lab.outbox_store import SparkCheckpoint
from spark_ckpt.epochs import ways_back
from spark_ckpt.epochs.restore import LATEST
from spark_ckpt.errors import BatchUnexpected, CkptError, QueryForeign
from spark_ckpt.outbox import protocol, rule
from spark_ckpt.outbox.protocol import (
    AppendAcks,
    AwaitPublish,
    Begin,
    Commit,
    NewestBatch,
    OutboxProtocol,
    PublishEpoch,
    RunPlan,
    Staged,
    TellBranch,
)
from spark_ckpt.outbox.rule import BatchVerdict, Ruling
from spark_ckpt.store import proposals


def between(monkeypatch, host, method="call"):
    """Put `host` between a method of the protocol and its host.

    It takes an effect and the method's arguments, yields effects to carry out, and returns the answer.
    """
    shipped = getattr(OutboxProtocol, method)

    def changed(self, *given):
        return carried_out(shipped(self, *given), lambda effect: host(effect, *given))

    monkeypatch.setattr(OutboxProtocol, method, changed)


def carried_out(effects, host):
    answer = None
    while True:
        try:
            effect = effects.send(answer)
        except StopIteration as end:
            return end.value
        try:
            answer = yield from host(effect)
        except CkptError as error:
            effects.throw(error)


def edited(monkeypatch, change):
    """Change the effects of every call: `change` takes one, and returns one, or None to leave it out."""

    def host(effect, batch):
        changed = change(effect)
        return None if changed is None else (yield changed)

    between(monkeypatch, host)


def a_slow_driver_passes_for_a_rewound_query(monkeypatch):
    """The protocol does not read the checkpoint's newest batch."""
    between(monkeypatch, lambda effect, batch: asked_unless(isinstance(effect, NewestBatch), effect, batch))


def a_slow_driver_whose_epochs_were_dropped_gets_advice_to_rewind(monkeypatch):
    """An unexpected batch is not compared with the newest one of the checkpoint."""
    judged, unexpected = protocol.judge, False

    def judge(*given):
        nonlocal unexpected
        unexpected = True
        found = judged(*given)
        unexpected = False
        return found

    monkeypatch.setattr(protocol, "judge", judge)
    between(
        monkeypatch, lambda effect, batch: asked_unless(isinstance(effect, NewestBatch) and unexpected, effect, batch)
    )


def asked_unless(this_is_the_newest, effect, batch):
    return batch.number if this_is_the_newest else (yield effect)


def a_named_epoch_is_restored_whatever_was_committed_meanwhile(monkeypatch):
    edited(monkeypatch, lambda effect: replace(effect, since=None) if isinstance(effect, Begin) else effect)


def a_branch_begins_before_it_is_reported(monkeypatch):
    """A crash between the two loses the report."""
    call = OutboxProtocol.call

    def hasty(self, batch):
        reports = []

        def host(effect):
            if isinstance(effect, TellBranch):
                reports.append(effect)
                return None
            answer = yield effect
            while isinstance(effect, Begin) and reports:
                yield reports.pop()
            return answer

        return carried_out(call(self, batch), host)

    monkeypatch.setattr(OutboxProtocol, "call", hasty)


def a_restart_with_the_same_arguments_restores_again(monkeypatch):
    restored = rule.restored

    def again(log_state, batch, accepted, restore):
        found = restored(log_state, batch, accepted, restore)
        again = found.verdict is BatchVerdict.AGAIN and found.base != restore
        return Ruling(BatchVerdict.REWOUND, restore) if again else found

    monkeypatch.setattr(rule, "restored", again)


def a_commit_lacks_the_rows_of_a_sink(monkeypatch):
    def lacking(effect):
        if not isinstance(effect, Commit) or len(effect.manifest.outputs) < 2:
            return effect
        fewer = dict([*effect.manifest.outputs.items()][1:])
        return Commit(effect.manifest.model_copy(update={"outputs": fewer}))

    edited(monkeypatch, lacking)


def every_commit_has_one_id(monkeypatch):
    def same(effect):
        if not isinstance(effect, Commit):
            return effect
        return Commit(effect.manifest.model_copy(update={"attempt": "the only one"}))

    edited(monkeypatch, same)


def an_empty_branch_takes_every_query(monkeypatch):
    judged = protocol.judge

    def trusting(log_state, batch, accepted=rule.NO_CHANGES):
        if accepted.restore is None and not log_state.latest:
            return Ruling(BatchVerdict.NEW, 0)
        return judged(log_state, batch, accepted)

    monkeypatch.setattr(protocol, "judge", trusting)


def the_named_restore_of_a_second_querys_first_batch_is_refused(monkeypatch):
    monkeypatch.setattr(rule, "has_begun_at", lambda log_state, batch, epoch: epoch == log_state.latest)


# -- the rule -------------------------------------------------------------------------------------------------------------


def a_query_is_known_by_the_number_of_its_batch(monkeypatch):
    monkeypatch.setattr(rule, "follows", lambda batch, known: batch.number == known.number + 1)


def every_query_may_write(monkeypatch):
    def trusting(log_state, batch, accepted=rule.NO_CHANGES):
        return judged(log_state, batch, replace(accepted, query=batch.query))

    judged = protocol.judge
    monkeypatch.setattr(protocol, "judge", trusting)


def a_gap_is_taken_for_new(monkeypatch):
    def trusting(log_state, batch, accepted=rule.NO_CHANGES):
        try:
            return judged(log_state, batch, accepted)
        except BatchUnexpected:
            return Ruling(BatchVerdict.NEW, log_state.latest)

    judged = protocol.judge
    monkeypatch.setattr(protocol, "judge", trusting)


def a_decided_batch_is_new_again(monkeypatch):
    def forgetful(log_state, batch, accepted=rule.NO_CHANGES):
        found = judged(log_state, batch, accepted)
        return Ruling(BatchVerdict.NEW, found.base) if found.verdict is BatchVerdict.AGAIN else found

    judged = protocol.judge
    monkeypatch.setattr(protocol, "judge", forgetful)


def a_rewound_query_goes_on_at_the_end_of_the_log(monkeypatch):
    def straight(log_state, batch, accepted=rule.NO_CHANGES):
        found = judged(log_state, batch, accepted)
        return Ruling(BatchVerdict.NEW, log_state.latest) if found.verdict is BatchVerdict.REWOUND else found

    judged = protocol.judge
    monkeypatch.setattr(protocol, "judge", straight)


def a_branch_begins_one_epoch_too_early(monkeypatch):
    def early(log_state, batch):
        found = branch_point(log_state, batch)
        return log_state.by_id[found].base if found in log_state.by_id else found

    branch_point = rule.branch_point
    monkeypatch.setattr(rule, "branch_point", early)


def only_acknowledged_epochs_are_reported(monkeypatch):
    def shown(log_state, base):
        return [replace(each, maybe=()) for each in left_behind(log_state, base)]

    left_behind = protocol.left_behind
    monkeypatch.setattr(protocol, "left_behind", shown)


def every_sink_of_a_left_epoch_only_may_show_it(monkeypatch):
    def unsure(log_state, base):
        return [replace(each, shown=(), maybe=(*each.shown, *each.maybe)) for each in left_behind(log_state, base)]

    left_behind = protocol.left_behind
    monkeypatch.setattr(protocol, "left_behind", unsure)


def the_newest_epoch_of_a_branch_is_not_reported(monkeypatch):
    left_behind = protocol.left_behind
    monkeypatch.setattr(protocol, "left_behind", lambda log_state, base: left_behind(log_state, base)[:-1])


def epochs_that_retention_dropped_are_not_reported(monkeypatch):
    monkeypatch.setattr(protocol, "dropped_with", lambda log_state, base: 0)


# -- the protocol ---------------------------------------------------------------------------------------------------------


def a_refused_call_begins_an_incarnation(monkeypatch):
    """The call fences the working driver and is refused then."""
    call = OutboxProtocol.call

    def late(self, batch):
        try:
            return (yield from call(self, batch))
        except (BatchUnexpected, QueryForeign):
            yield Begin(LATEST)
            raise

    monkeypatch.setattr(OutboxProtocol, "call", late)


def a_decided_batch_does_not_run_its_plan(monkeypatch):

    def host(effect, batch):
        skipped = isinstance(effect, RunPlan) and not effect.stages
        return Staged({}, "", 0, 0, 0) if skipped else (yield effect)

    between(monkeypatch, host)


def a_decided_batch_leaves_no_state(monkeypatch):
    """The plan runs without its end: a task does not drain its rows."""
    run = SparkCheckpoint.run

    def lazy(checkpoint, number):
        rows = run(checkpoint, number)
        if number in checkpoint.commits or number % 2:
            del checkpoint.states[number]
        return rows

    monkeypatch.setattr(SparkCheckpoint, "run", lazy)


def the_plan_runs_twice(monkeypatch):
    def host(effect, batch):
        answer = yield effect
        return (yield effect) if isinstance(effect, RunPlan) else answer

    between(monkeypatch, host)


def an_epoch_is_published_before_it_is_committed(monkeypatch):
    """Its commit comes at the end of the call."""
    call = OutboxProtocol.call

    def hasty(self, batch):
        commits = []

        def host(effect):
            if isinstance(effect, Commit):
                commits.append(effect)
                return None
            return (yield effect)

        verdict = yield from carried_out(call(self, batch), host)
        yield from commits
        return verdict

    monkeypatch.setattr(OutboxProtocol, "call", hasty)


def an_epoch_that_was_not_published_is_forgotten_at_a_restart(monkeypatch):

    def host(effect, *given):
        answer = yield effect
        return replace(answer, point=replace(answer.point, unpublished={})) if isinstance(effect, Begin) else answer

    between(monkeypatch, host)
    between(monkeypatch, host, "recover")


def an_error_of_a_sink_is_caught(monkeypatch):
    published = OutboxProtocol.publish

    def mild(self):
        try:
            yield from published(self)
        except CkptError:
            return

    monkeypatch.setattr(OutboxProtocol, "publish", mild)


def an_error_of_the_log_is_caught(monkeypatch):
    call = OutboxProtocol.call

    def mild(self, batch):
        try:
            return (yield from call(self, batch))
        except CkptError:
            return BatchVerdict.NEW

    monkeypatch.setattr(OutboxProtocol, "call", mild)


def a_first_acknowledgement_waits(monkeypatch):
    """The sink's marker expires, and no record shows that it had the rows."""
    edited(monkeypatch, lambda effect: replace(effect, at_once=False) if isinstance(effect, AppendAcks) else effect)


def the_sinks_of_an_epoch_count_as_one(monkeypatch):
    """All sinks count as acknowledged after the first."""

    def host(effect):
        answer = yield effect
        one = isinstance(effect, PublishEpoch) and answer.sinks
        return replace(answer, sinks=tuple(effect.outputs)) if one else answer

    between(monkeypatch, host, "publish")


# -- the host and the log --------------------------------------------------------------------------------------------------


def a_log_without_a_fence(monkeypatch):
    monkeypatch.setattr(proposals, "fence", lambda log_state, incarnation: None)


def a_lost_answer_of_a_publish_counts_as_success(monkeypatch):
    ended = OutboxDriver.end_of_publish
    monkeypatch.setattr(OutboxDriver, "end_of_publish", lambda driver, sink, error: ended(driver, sink, None))


def the_sinks_of_a_branch_are_not_fenced(monkeypatch):
    """A driver that stood still within its publish shows an epoch that the branch has left."""
    monkeypatch.setattr(OutboxDriver, "fence", lambda driver, point: None)


def sinks_that_are_ahead_of_an_older_log_are_not_refused(monkeypatch):
    monkeypatch.setattr(outbox_driver, "refusal", lambda markers, log_state, store: None)


def a_sweep_deletes_what_is_not_published(monkeypatch):
    monkeypatch.setattr(
        spark_driver, "kept_epochs", lambda log_state, policy, now_ms: {log_state.latest, log_state.base} - {0}
    )


def a_sweep_takes_files_of_its_own_incarnation_for_garbage(monkeypatch):
    garbage = spark_driver.garbage
    monkeypatch.setattr(spark_driver, "garbage", lambda *what: garbage(*what[:-1], what[-1] + 1))


# -- overlap ---------------------------------------------------------------------------------------------------------------


def a_batch_is_decided_before_the_last_one_is_public(monkeypatch):
    edited(monkeypatch, lambda effect: None if isinstance(effect, AwaitPublish) else effect)


def the_error_of_a_publish_under_way_is_dropped(monkeypatch):
    """The next batch commits and is published without the failed one."""
    failed = OutboxDriver.end_of_publish

    def mild(driver, sink, error):
        failed(driver, sink, None if driver.behind is not None else error)

    monkeypatch.setattr(OutboxDriver, "end_of_publish", mild)


def a_start_publishes_nothing_without_a_batch(monkeypatch):
    monkeypatch.setattr(OutboxProtocol, "recover", lambda self, known, committed: (each for each in ()))


def the_error_of_another_branchs_marker_names_no_step(monkeypatch):
    monkeypatch.setattr(ways_back, "past_the_marker", lambda error, *_: error)


HAD = [
    a_slow_driver_passes_for_a_rewound_query,
    a_named_epoch_is_restored_whatever_was_committed_meanwhile,
    a_branch_begins_before_it_is_reported,
    a_restart_with_the_same_arguments_restores_again,
    an_empty_branch_takes_every_query,
    the_named_restore_of_a_second_querys_first_batch_is_refused,
    a_slow_driver_whose_epochs_were_dropped_gets_advice_to_rewind,
]
PLANTED = [
    *HAD,
    a_query_is_known_by_the_number_of_its_batch,
    every_query_may_write,
    a_gap_is_taken_for_new,
    a_decided_batch_is_new_again,
    a_rewound_query_goes_on_at_the_end_of_the_log,
    a_branch_begins_one_epoch_too_early,
    only_acknowledged_epochs_are_reported,
    every_sink_of_a_left_epoch_only_may_show_it,
    the_newest_epoch_of_a_branch_is_not_reported,
    epochs_that_retention_dropped_are_not_reported,
    a_refused_call_begins_an_incarnation,
    a_decided_batch_does_not_run_its_plan,
    a_decided_batch_leaves_no_state,
    the_plan_runs_twice,
    an_epoch_is_published_before_it_is_committed,
    an_epoch_that_was_not_published_is_forgotten_at_a_restart,
    an_error_of_a_sink_is_caught,
    an_error_of_the_log_is_caught,
    a_first_acknowledgement_waits,
    the_sinks_of_an_epoch_count_as_one,
    a_log_without_a_fence,
    a_lost_answer_of_a_publish_counts_as_success,
    sinks_that_are_ahead_of_an_older_log_are_not_refused,
    a_sweep_deletes_what_is_not_published,
    a_sweep_takes_files_of_its_own_incarnation_for_garbage,
    a_commit_lacks_the_rows_of_a_sink,
    every_commit_has_one_id,
]

OVERLAPPING = [
    a_batch_is_decided_before_the_last_one_is_public,
    the_error_of_a_publish_under_way_is_dropped,
    a_start_publishes_nothing_without_a_batch,
    the_error_of_another_branchs_marker_names_no_step,
]
"""Bugs that need the publish of a batch to overlap with the next batch."""
OVERLAPPING_CATCHERS = (3884,)
"""As `CATCHERS`, of a bug that one schedule in thousands finds."""

SEEDS = {
    "a_slow_driver_passes_for_a_rewound_query": 131,
    "a_named_epoch_is_restored_whatever_was_committed_meanwhile": 972,
    "a_branch_begins_before_it_is_reported": 6,
    "a_restart_with_the_same_arguments_restores_again": 24,
    "an_empty_branch_takes_every_query": 69,
    "the_named_restore_of_a_second_querys_first_batch_is_refused": 389,
    "a_slow_driver_whose_epochs_were_dropped_gets_advice_to_rewind": 99,
    "a_query_is_known_by_the_number_of_its_batch": 9,
    "every_query_may_write": 69,
    "a_gap_is_taken_for_new": 9,
    "a_decided_batch_is_new_again": 9,
    "a_rewound_query_goes_on_at_the_end_of_the_log": 22,
    "a_branch_begins_one_epoch_too_early": 391,
    "only_acknowledged_epochs_are_reported": 6,
    "the_newest_epoch_of_a_branch_is_not_reported": 22,
    "epochs_that_retention_dropped_are_not_reported": 972,
    "a_refused_call_begins_an_incarnation": 12,
    "a_decided_batch_does_not_run_its_plan": 9,
    "a_decided_batch_leaves_no_state": 1,
    "the_plan_runs_twice": 0,
    "an_epoch_is_published_before_it_is_committed": 3,
    "an_epoch_that_was_not_published_is_forgotten_at_a_restart": 6,
    "an_error_of_a_sink_is_caught": 7,
    "an_error_of_the_log_is_caught": 2,
    "a_first_acknowledgement_waits": 1167,
    "the_sinks_of_an_epoch_count_as_one": 391,
    "a_log_without_a_fence": 311,
    "a_lost_answer_of_a_publish_counts_as_success": 391,
    "sinks_that_are_ahead_of_an_older_log_are_not_refused": 106,
    "a_sweep_deletes_what_is_not_published": 581,
    "a_sweep_takes_files_of_its_own_incarnation_for_garbage": 13,
    "a_commit_lacks_the_rows_of_a_sink": 0,
    "every_commit_has_one_id": 0,
}
"""A short schedule that condemns the bug, tried first. A search of 3,000 schedules has found them."""
CATCHERS = (*dict.fromkeys(SEEDS.values()),)
