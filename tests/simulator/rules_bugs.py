"""Bugs planted in the rules around the epoch protocol: patience, reports, manifests, the log, the choice of an epoch.

Each changes shipped code for one test.
"""

from __future__ import annotations

from dataclasses import replace

from checkpoint_lab import spark_batches, spark_driver
from spark_ckpt.coordination import full_snapshots, manifests, patience, protocol, reports
from spark_ckpt.coordination.cut import Cut
from spark_ckpt.coordination.messages import CommitEpoch, Publish
from spark_ckpt.coordination.patience import Patience
from spark_ckpt.coordination.protocol import EpochProtocol
from spark_ckpt.epochs import identity, restore
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import EpochBrief
from spark_ckpt.epochs.retention import garbage, segments, staged_files, state_files
from spark_ckpt.store import proposals
from spark_ckpt.store.log_table import NewRow


def an_outage_counts_as_a_failure(monkeypatch):
    kind_of = patience.kind_of
    monkeypatch.setattr(patience, "kind_of", lambda error: patience.Kind.COUNTS if error.retriable else kind_of(error))


def a_failure_passes_like_an_outage(monkeypatch):
    kind_of = patience.kind_of
    monkeypatch.setattr(patience, "kind_of", lambda error: patience.Kind.PASSES if error.retriable else kind_of(error))


def the_time_of_work_counts_as_outage(monkeypatch):
    after = Patience.after_outage
    monkeypatch.setattr(Patience, "after_outage", lambda self, ended: after(self, replace(ended, lived_s=0.0)))


def an_outage_is_waited_for_for_ever(monkeypatch):
    def after(self, ended):
        self.since_s = None
        return forgetful(self, ended)

    forgetful = Patience.after_outage
    monkeypatch.setattr(Patience, "after_outage", after)


def a_task_of_one_operator_is_taken_for_a_newer_attempt_of_anothers(monkeypatch):
    monkeypatch.setattr(reports, "place_of", lambda report: (report.step, report.partition, ""))


def every_attempt_of_a_task_counts(monkeypatch):
    monkeypatch.setattr(spark_batches, "latest_attempts", list)


def a_task_reports_its_first_call_only(monkeypatch):
    """The key groups that Spark calls later in the same task are missing."""
    monkeypatch.setattr(reports, "joined", lambda first, second: {**second, **first})


def a_task_reports_its_last_call_only(monkeypatch):
    monkeypatch.setattr(reports, "joined", lambda first, second: second)


def the_attempts_of_a_task_are_added_up(monkeypatch):
    latest = spark_batches.latest_attempts

    def summed(found):
        late = {}
        for each in found:
            late[each.scope, each.partition] = late.get((each.scope, each.partition), 0) + each.body.get("late", 0)
        return [
            replace(each, body={**each.body, "late": late[each.scope, each.partition]})
            if each.step == "operator"
            else each
            for each in latest(found)
        ]

    monkeypatch.setattr(spark_batches, "latest_attempts", summed)


def a_key_group_gets_no_marker(monkeypatch):
    """The task's other key groups get no barrier, and no file holds their rows."""
    called = spark_batches.SimulatedQuery.called
    monkeypatch.setattr(
        spark_batches.SimulatedQuery,
        "called",
        lambda query, operator, task, marker: called(query, operator, task, marker)[: 1 if marker else None],
    )


def a_manifest_names_all_files_of_every_operator(monkeypatch):
    def mixed(operator, ended):
        chains = {(operator.name, group): files for (_, group), files in ended.chains.items()}
        return snapshot(operator, replace(ended, chains=chains))

    snapshot = manifests.snapshot_of
    monkeypatch.setattr(manifests, "snapshot_of", mixed)


def a_manifest_stands_on_the_epoch_decided_first(monkeypatch):
    made = protocol.manifest_of
    monkeypatch.setattr(
        protocol, "manifest_of", lambda *what: made(*what).model_copy(update={"base": min(1, made(*what).base)})
    )


def a_job_knows_of_its_first_source_only(monkeypatch):
    made = protocol.manifest_of
    first = lambda manifest: dict(list(manifest.cursors.items())[:1])  # noqa: E731
    monkeypatch.setattr(
        protocol, "manifest_of", lambda *what: made(*what).model_copy(update={"cursors": first(made(*what))})
    )


def numbers_restart_in_every_incarnation(monkeypatch):
    starts = EpochProtocol.on_query_starting

    def from_zero(core, event):
        core.last_used = core.last_committed = 0
        return starts(core, event)

    monkeypatch.setattr(EpochProtocol, "on_query_starting", from_zero)


def a_log_that_takes_a_number_again(monkeypatch):
    """It checks the fence only, and the numbers of incarnations restart."""

    def takes(log_state, manifest, now_ms, index=0):
        if manifest.attempt in {each.attempt for each in log_state.by_id.values()}:
            return None
        proposals.fence(log_state, manifest.incarnation)
        brief = EpochBrief.of(manifest, now_ms + log_state.lease_ms).model_dump_json()
        body = manifest.model_dump_json()
        return NewRow("epoch", manifest.epoch, manifest.incarnation, manifest.attempt, brief, body)

    numbers_restart_in_every_incarnation(monkeypatch)
    monkeypatch.setattr(proposals, "epoch", takes)


def a_log_without_a_fence(monkeypatch):
    monkeypatch.setattr(proposals, "fence", lambda log_state, incarnation: None)


def a_log_that_forgets_an_unpublished_epoch(monkeypatch):
    unacked = LogState.unacked
    monkeypatch.setattr(LogState, "unacked", lambda log_state, sink: unacked(log_state, sink)[1:])


def a_restore_that_takes_the_epoch_before_the_newest(monkeypatch):
    checked = restore.checked

    def before(log_state, epoch, *what):
        return checked(log_state, log_state.by_id[epoch].base if epoch in log_state.by_id else epoch, *what)

    monkeypatch.setattr(restore, "checked", before)


def a_restore_that_owes_the_newest_epoch_only(monkeypatch):
    checked = restore.checked

    def newest(*what):
        choice = checked(*what)
        return replace(choice, unpublished={sink: owed[-1:] for sink, owed in choice.unpublished.items()})

    monkeypatch.setattr(restore, "checked", newest)


def an_epoch_whose_decision_is_overdue_is_aborted(monkeypatch):
    """The epoch may be in the log, or get there."""
    monkeypatch.setattr(EpochProtocol, "on_commit_overdue", lambda core, event: core.abort("no answer"))


def sinks_are_enough(monkeypatch):
    """Seed 001 as printed: the checkpoint commits when every sink has acknowledged (erratum E2)."""
    monkeypatch.setattr(Cut, "missing_groups", lambda cut, ended: frozenset())


def an_aborted_epoch_gives_its_number_to_the_next(monkeypatch):
    aborts = EpochProtocol.abort

    def again(core, why):
        effects = aborts(core, why)
        core.last_used -= 1
        return effects

    monkeypatch.setattr(EpochProtocol, "abort", again)


def an_epoch_is_published_before_it_is_committed(monkeypatch):
    commits = EpochProtocol.commit_if_complete

    def hasty(core, ended, idle):
        effects = commits(core, ended, idle)
        for manifest in [each.manifest for each in effects if isinstance(each, CommitEpoch)]:
            core.publication.manifests[manifest.epoch] = manifest
            effects += [
                Publish(sink, core.publication.output(sink, manifest.epoch, core.last_committed))
                for sink in manifest.outputs
            ]
        return effects

    monkeypatch.setattr(EpochProtocol, "commit_if_complete", hasty)


def _another_batch(monkeypatch, batch_of):
    commits = EpochProtocol.commit_if_complete

    def planted(core, ended, idle):
        effects = commits(core, ended, idle)
        return [
            replace(each, batch=batch_of(core, each)) if isinstance(each, CommitEpoch) else each for each in effects
        ]

    monkeypatch.setattr(EpochProtocol, "commit_if_complete", planted)


def an_epoch_takes_sparks_state_of_the_batch_before(monkeypatch):
    _another_batch(monkeypatch, lambda core, effect: effect.batch - 1)


def an_epoch_takes_no_state_of_spark(monkeypatch):
    _another_batch(monkeypatch, lambda core, effect: None)


def an_epoch_takes_sparks_state_of_the_newest_batch(monkeypatch):
    """A prefetched barrier has closed the epoch with an earlier batch."""
    _another_batch(monkeypatch, lambda core, effect: core.cut.builder.batch)


def a_sweep_deletes_unpublished_epochs(monkeypatch):
    monkeypatch.setattr(
        spark_driver, "kept_epochs", lambda log_state, policy, now_ms: {log_state.latest, log_state.base} - {0}
    )


def a_sweep_takes_files_of_its_own_incarnation_for_garbage(monkeypatch):
    """No epoch names them yet."""
    monkeypatch.setattr(spark_driver, "garbage", lambda *what: garbage(*what[:-1], what[-1] + 1))


def a_sweep_takes_what_is_held_back_for_garbage(monkeypatch):
    def published_only(manifests, sink):
        return staged_files([each.model_copy(update={"held": {}}) for each in manifests], sink)

    _instead(monkeypatch, staged_files, published_only)


def a_sweep_keeps_the_newest_file_of_a_chain_only(monkeypatch):
    def newest(manifests, operator):
        last = {each.epoch: file.path for each in manifests for file in _files(each, operator)}
        return set(last.values())

    _instead(monkeypatch, state_files, newest)


def each_key_group_writes_its_full_snapshot_alone(monkeypatch):
    """Deleted keys return for readers of the table: an older file stays for the other groups in it."""
    connected = full_snapshots.connected

    def alone(files):
        sets = ({group} & groups for groups, _ in connected(files) for group in groups)
        return [(frozenset(each), [file for file in files if each <= file.key_groups]) for each in sets]

    monkeypatch.setattr(full_snapshots, "connected", alone)


def a_task_reports_before_its_file_is_durable(monkeypatch):
    """Each file appears with the next one."""
    write_state = spark_batches.Shared.write_state

    def late(self, path, content):
        waiting.append((path, content))
        if len(waiting) > 1:
            write_state(self, *waiting.pop(0))

    waiting = []
    monkeypatch.setattr(spark_batches.Shared, "write_state", late)


def a_sweep_takes_what_is_in_flight_for_garbage(monkeypatch):
    _instead(monkeypatch, segments, lambda manifests, edge: set())


def _files(manifest, operator):
    return manifest.operators[operator].files if operator in manifest.operators else ()


def _instead(monkeypatch, shipped, planted):
    tables = [(name, prefix, planted if named is shipped else named) for name, prefix, named in spark_driver.TABLES]
    monkeypatch.setattr(spark_driver, "TABLES", tables)


def an_identity_is_compared_with_nothing(monkeypatch):
    monkeypatch.setattr(identity, "differing", lambda known, found: [])


def epochs_do_not_say_what_sources_were(monkeypatch):
    made = protocol.manifest_of
    monkeypatch.setattr(protocol, "manifest_of", lambda *what: made(*what).model_copy(update={"source_identities": {}}))


def what_the_newest_epoch_says_of_sinks_is_not_looked_up(monkeypatch):
    monkeypatch.setattr(
        identity, "newest_readable", lambda log_state, base, read: base.model_copy(update={"sink_identities": {}})
    )


PLANTED_AROUND = [
    an_identity_is_compared_with_nothing,
    epochs_do_not_say_what_sources_were,
    what_the_newest_epoch_says_of_sinks_is_not_looked_up,
    a_sweep_deletes_unpublished_epochs,
    a_sweep_takes_files_of_its_own_incarnation_for_garbage,
    a_sweep_takes_what_is_held_back_for_garbage,
    a_sweep_keeps_the_newest_file_of_a_chain_only,
    a_sweep_takes_what_is_in_flight_for_garbage,
    each_key_group_writes_its_full_snapshot_alone,
    a_task_reports_before_its_file_is_durable,
    an_epoch_whose_decision_is_overdue_is_aborted,
    sinks_are_enough,
    an_epoch_takes_no_state_of_spark,
    an_epoch_takes_sparks_state_of_the_batch_before,
    an_epoch_takes_sparks_state_of_the_newest_batch,
    an_aborted_epoch_gives_its_number_to_the_next,
    an_epoch_is_published_before_it_is_committed,
    an_outage_counts_as_a_failure,
    a_failure_passes_like_an_outage,
    the_time_of_work_counts_as_outage,
    an_outage_is_waited_for_for_ever,
    a_task_of_one_operator_is_taken_for_a_newer_attempt_of_anothers,
    every_attempt_of_a_task_counts,
    a_task_reports_its_first_call_only,
    a_task_reports_its_last_call_only,
    the_attempts_of_a_task_are_added_up,
    a_key_group_gets_no_marker,
    a_manifest_names_all_files_of_every_operator,
    a_manifest_stands_on_the_epoch_decided_first,
    a_job_knows_of_its_first_source_only,
    numbers_restart_in_every_incarnation,
    a_log_that_takes_a_number_again,
    a_log_without_a_fence,
    a_log_that_forgets_an_unpublished_epoch,
    a_restore_that_takes_the_epoch_before_the_newest,
    a_restore_that_owes_the_newest_epoch_only,
]
