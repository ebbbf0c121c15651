"""Bugs planted in the epoch protocol of an incarnation: each replaces one method or value of it, or of one of its parts.

All of them are public: handlers `on_*` of the table, and attributes of `Cut`, `Publication` and their parts.
"""

from __future__ import annotations

from dataclasses import replace

from spark_ckpt.coordination import full_snapshots
from spark_ckpt.coordination.cut import Gathered, Prefetched, distinct
from spark_ckpt.coordination.markers import BARRIER, OPEN
from spark_ckpt.coordination.messages import (
    CommitEpoch,
    CommitFenced,
    CommitOverdue,
    End,
    EpochCommitted,
    IntervalElapsed,
    NameEpoch,
    Publish,
    PublishEnded,
    SayPublished,
    StandbyWaits,
    StopRequested,
    TimeoutElapsed,
)
from spark_ckpt.coordination.protocol import EpochPhase, EpochProtocol
from spark_ckpt.epochs.records import SinkAck
from spark_ckpt.errors import Fenced


def core_with(plant):
    """The shipped protocol after `plant(core)`.

    Raises `AttributeError` if the plant sets a name that does not exist.
    """

    def made(shape, point, acked, standing):
        core = EpochProtocol(shape, point, standing, acked)
        known = {id(part): (part, {*dir(part)}) for part in parts_of(core)}
        plant(core)
        for part, names in known.values():
            if unknown := {*dir(part)} - names:
                raise AttributeError(f"{type(part).__name__} has no {', '.join(sorted(unknown))}: nothing is planted")
        return core

    return made


def parts_of(core):
    """The core and every object of the product in it, at any depth."""
    found, todo = [], [core]
    while todo:
        part = todo.pop()
        if type(part).__module__.startswith("spark_ckpt.coordination") and all(part is not each for each in found):
            found.append(part)
            todo += vars(part).values() if hasattr(part, "__dict__") else ()
        elif isinstance(part, dict):
            todo += part.values()
    return found


# -- the batch that ends an epoch ---------------------------------------------------------------------------------------


def marker_ends_an_epoch_in_every_batch(core):
    """The marker stays the source's offset until the next one; only the first batch that has it counts."""
    markers = core.cut.markers

    def ended_by(count, open_epoch):
        reached = markers.offered[count]
        return reached.epoch if reached.kind == BARRIER and reached.epoch == open_epoch else None

    markers.ended_by = ended_by


def late_barrier_ends_the_open_epoch(core):
    markers, ended_by = core.cut.markers, core.cut.markers.ended_by

    def any_barrier(count, open_epoch):
        before = markers.reached.number
        ended_by(count, open_epoch)
        return open_epoch if markers.reached.number > before and markers.reached.kind == BARRIER else None

    markers.ended_by = any_barrier


def opening_marker_ends_an_epoch(core):
    markers = core.cut.markers
    markers.ended_by = lambda count, open_epoch: open_epoch if markers.offered[count].kind == OPEN else None


def a_batch_that_ends_before_its_epoch_is_open_is_forgotten(core):
    class Forgets(Prefetched):
        def hold(self):
            self.over()

    core.cut.prefetched = Forgets()


def an_epoch_that_waits_to_be_opened_reads_on(core):
    """It takes the cut of the newest batch instead of its barrier's."""
    take = core.cut.builder.take
    core.cut.builder.take = lambda epoch: replace(take(epoch), cursors=dict(core.cut.cursors))


def a_job_drains_with_an_epoch_that_was_complete_before(core):
    """The final epoch lacks rows that came after it."""
    core.cut.has_drained = lambda event: event.drained and not any(core.cut.builder.rows_in_flight.values())


# -- content of an epoch ------------------------------------------------------------------------------------------------


def aborted_rows_are_dropped(core):
    core.cut.builder.aborted = lambda epoch: core.cut.builder.closed.pop(epoch, None)


def aborted_rows_come_last(core):
    builder = core.cut.builder

    def aborted(epoch):
        ended = builder.closed.pop(epoch, None)
        if ended is not None:
            builder.gathered, builder.moved = builder.gathered.put_before(ended.gathered), True

    builder.aborted = aborted


def aborted_epoch_leaves_the_chains(core):
    builder, aborted = core.cut.builder, core.cut.builder.aborted

    def without_its_files(epoch):
        aborted(epoch)
        builder.chains = {
            group: tuple(file for file in files if file.epoch != epoch) for group, files in builder.chains.items()
        }

    builder.aborted = without_its_files


def rows_of_an_ended_epoch_stay_open(core):
    builder, end = core.cut.builder, core.cut.builder.end

    def ends(epoch, cursors):
        gathered = builder.gathered
        ended = end(epoch, cursors)
        builder.gathered = gathered
        return ended

    builder.end = ends


def full_files_that_a_task_has_missed_are_not_asked_for_again(core):
    builder = core.cut.builder

    def due_for_full(after):
        files = {name: [] for name, _ in builder.chains}
        for (name, _), chain in builder.chains.items():
            files[name] += chain
        return full_snapshots.asking(
            {name: full_snapshots.due(distinct(own), after, 10**9) for name, own in files.items()}
        )

    builder.due_for_full = due_for_full


def changes_replace_the_chain(core):
    builder, snapshot = core.cut.builder, core.cut.builder.take_snapshot

    def alone(operator, body):
        for group in body.get("groups", ()):
            builder.chains.pop((operator, group), None)
        snapshot(operator, body)

    builder.take_snapshot = alone


def a_full_file_is_left_out(core):
    builder, snapshot = core.cut.builder, core.cut.builder.take_snapshot
    builder.take_snapshot = lambda operator, body: snapshot(
        operator, {**body, "files": [file for file in body.get("files", ()) if file["kind"] != "full"]}
    )


def cursors_are_those_before_the_barriers_batch(core):
    end, add, before = core.cut.builder.end, core.cut.builder.add, [dict(core.cut.cursors)]

    def adds(watermark_ms, reports, *others):
        before.append(dict(core.cut.cursors))
        return add(watermark_ms, reports, *others)

    core.cut.builder.add = adds
    core.cut.builder.end = lambda epoch, cursors: end(epoch, before[-2])


def only_one_sink_is_staged(core):
    core.shape = replace(core.shape, sinks=dict(list(core.shape.sinks.items())[:1]))


def only_one_operator_is_part_of_the_epoch(core):
    core.shape = core.cut.shape = replace(core.shape, operators=core.shape.operators[:1])


def the_groups_of_one_operator_are_enough(core):
    first, missing = core.shape.operators[0].name, core.cut.missing_groups
    core.cut.missing_groups = lambda ended: frozenset(group for group in missing(ended) if group[0] == first)


def snapshots_go_by_the_groups_number_alone(core):
    builder, snapshot = core.cut.builder, core.cut.builder.take_snapshot
    first = core.shape.operators[0].name
    builder.take_snapshot = lambda group, body: snapshot((first, group[1]), body)


def files_of_later_batches_come_first(core):
    builder = core.cut.builder
    add = builder.add

    def adds(watermark_ms, reports, *others):
        before, builder.gathered = builder.gathered, Gathered()
        counts = add(watermark_ms, reports, *others)
        builder.gathered = builder.gathered.put_before(before)
        return counts

    builder.add = adds


# -- state of an incarnation --------------------------------------------------------------------------------------------


def restored_cursors_are_forgotten(core):
    core.cut.cursors = {}


def restored_state_is_forgotten(core):
    core.cut.builder.chains = {}


def numbers_go_on_from_the_base(core):
    """The number of a committed epoch is used again."""
    core.last_used = core.last_committed = max(0, core.cut.base.epoch - 1)


def the_base_stays_the_restored_epoch(core):
    base, committed = core.cut.base, core.on_epoch_committed

    def stays(event):
        effects = committed(event)
        core.cut.base = base
        return effects

    core.on_epoch_committed = stays


def unpublished_epochs_are_forgotten(core):
    for epochs in core.publication.unpublished.values():
        epochs.clear()


def a_fence_of_the_log_counts_as_stored(core):
    handle = core.handle
    last = []

    def taken(event, now_ms):
        if isinstance(event, CommitFenced) and last:
            event = EpochCommitted(last[-1])
        effects = handle(event, now_ms)
        last.extend(effect.manifest for effect in effects if hasattr(effect, "manifest") and hasattr(effect, "names"))
        return effects

    core.handle = taken


def a_fenced_sink_is_tried_for_ever(core):
    handle = core.handle

    def taken(event, now_ms):
        if isinstance(event, PublishEnded) and isinstance(event.error, Fenced):
            return [Publish(event.sink, core.publication.output(event.sink, event.epoch, core.last_committed))]
        return [effect for effect in handle(event, now_ms) if not isinstance(effect, End)]

    core.handle = taken


# -- unpublished epochs -------------------------------------------------------------------------------------------------


def a_failed_publish_counts_as_done(core):
    handle = core.handle
    core.handle = lambda event, now_ms: handle(
        replace(event, error=None)
        if isinstance(event, PublishEnded) and event.error is not None and event.error.retriable
        else event,
        now_ms,
    )


def published_epochs_are_not_remembered(core):
    core.publication.acked = _Forgetful()


class _Forgetful(dict):
    def __setitem__(self, key, value):
        pass


def acks_are_written_before_the_sink_has_the_epoch(core):
    output = core.publication.output

    def early(sink, epoch, newest):
        core.publication.new_acks.append(SinkAck(sink=sink, epoch=epoch))
        return output(sink, epoch, newest)

    core.publication.output = early


def the_newest_epochs_rows_are_published_for_every_epoch(core):
    publication, output = core.publication, core.publication.output

    def newest_rows(sink, epoch, newest):
        newest_files = output(sink, max(publication.manifests), newest).files
        return replace(output(sink, epoch, newest), files=newest_files)

    publication.output = newest_rows


def manifests_are_forgotten_when_one_sink_has_them(core):
    publication, forget = core.publication, core.publication.forget

    def forgets():
        forget()
        publication.manifests.pop(min(publication.manifests, default=0), None)

    publication.forget = forgets


def newest_is_the_published_epoch(core):
    output = core.publication.output
    core.publication.output = lambda sink, epoch, newest: output(sink, epoch, epoch)


def the_decisions_id_is_not_passed_to_sinks(core):
    output = core.publication.output
    core.publication.output = lambda sink, epoch, newest: replace(
        output(sink, epoch, newest), decision=f"{core.incarnation}/{epoch}"
    )


# -- intervals and stops ------------------------------------------------------------------------------------------------


def an_idle_interval_is_lost(core):
    handle = core.handle

    def taken(event, now_ms):
        effects = handle(event, now_ms)
        if isinstance(event, IntervalElapsed):
            core.postponed = None
        return effects

    core.handle = taken


def an_interval_is_lost_when_a_standby_begins_to_wait(core):
    handle = core.handle

    def taken(event, now_ms):
        effects = handle(event, now_ms)
        return [] if isinstance(event, StandbyWaits) else effects

    core.handle = taken


def a_drained_job_does_not_end(core):
    handle = core.handle
    core.handle = lambda event, now_ms: handle(
        replace(event, drained=False) if hasattr(event, "drained") else event, now_ms
    )


def votes_are_lost(core):
    core.cut.missing_groups = lambda ended: core.shape.key_groups


def a_stop_is_not_heard(core):
    handle = core.handle
    core.handle = lambda event, now_ms: [] if isinstance(event, StopRequested) else handle(event, now_ms)


def a_savepoints_name_is_dropped(core):
    handle = core.handle
    core.handle = lambda event, now_ms: [
        replace(effect, names=()) if isinstance(effect, CommitEpoch) else effect for effect in handle(event, now_ms)
    ]


def a_savepoint_names_the_epoch_before(core):
    handle = core.handle

    def taken(event, now_ms):
        before = core.cut.base.epoch
        return [
            replace(effect, epoch=before) if isinstance(effect, NameEpoch) else effect
            for effect in handle(event, now_ms)
        ]

    core.handle = taken


def an_epoch_names_one_source_only(core):
    def fewer(effect):
        cursors = dict([*effect.manifest.cursors.items()][:1])
        return replace(effect, manifest=effect.manifest.model_copy(update={"cursors": cursors}))

    handle = core.handle
    core.handle = lambda event, now_ms: [
        fewer(effect) if isinstance(effect, CommitEpoch) else effect for effect in handle(event, now_ms)
    ]


# -- reports of an epoch ------------------------------------------------------------------------------------------------


def aborted_counts_are_dropped(core):
    builder, aborted = core.cut.builder, core.cut.builder.aborted

    def without_counts(epoch):
        ended = builder.closed.get(epoch)
        if ended is not None:
            ended.gathered.rows_in = ended.gathered.rows_out = 0
        aborted(epoch)

    builder.aborted = without_counts


def rows_are_counted_at_every_sink(core):
    builder, add = core.cut.builder, core.cut.builder.add

    def adds(watermark_ms, reports, *others):
        before = builder.gathered.rows_out
        counts = add(watermark_ms, reports, *others)
        builder.gathered.rows_out = before + sum(each.body.get("rows", 0) for each in reports)
        return counts

    builder.add = adds


def only_the_newest_file_of_a_chain_is_named(core):
    end = core.cut.builder.end

    def ends(epoch, cursors):
        ended = end(epoch, cursors)
        ended = replace(ended, chains={group: files[-1:] for group, files in ended.chains.items()})
        core.cut.builder.closed[epoch] = ended
        return ended

    core.cut.builder.end = ends


def a_replaced_driver_announces_what_its_successor_published(core):
    handle = core.handle
    core.handle = lambda event, now_ms: handle(
        replace(event, newest=0) if isinstance(event, PublishEnded) else event, now_ms
    )


def an_epoch_is_announced_as_its_publish_is_requested(core):
    """The sink gets it later, or an error."""
    handle = core.handle

    def early(event, now_ms):
        effects = [each for each in handle(event, now_ms) if not isinstance(each, SayPublished)]
        asked = [each for each in effects if isinstance(each, Publish)]
        return [*effects, *(SayPublished(each.output.epoch, {"sink": each.sink}) for each in asked)]

    core.handle = early


def what_is_published_is_never_acknowledged(core):
    publication, published = core.publication, core.publication.published

    def forgetful(event):
        detail = published(event)
        publication.new_acks.clear()
        return detail

    publication.published = forgetful


def the_restored_watermark_is_forgotten(core):
    watermarks = core.cut.builder.watermarks
    watermarks.now_ms = watermarks.base_ms = 0
    watermarks.inputs_ms.clear()


def an_input_counts_only_while_it_has_rows(core):
    watermarks, advance = core.cut.builder.watermarks, core.cut.builder.watermarks.advance

    def hasty(watermark_ms, reports):
        watermarks.inputs_ms.clear()
        advance(watermark_ms, reports)
        watermarks.now_ms = max([watermarks.now_ms, *list(watermarks.inputs_ms.values())[:1]])

    watermarks.advance = hasty


def the_watermark_is_that_of_the_fastest_input(core):
    watermarks, advance = core.cut.builder.watermarks, core.cut.builder.watermarks.advance

    def hasty(watermark_ms, reports):
        advance(watermark_ms, reports)
        watermarks.now_ms = max([watermarks.now_ms, *watermarks.inputs_ms.values()])

    watermarks.advance = hasty


def the_watermark_is_that_of_the_newest_batch(core):
    watermarks, advance = core.cut.builder.watermarks, core.cut.builder.watermarks.advance

    def back(watermark_ms, reports):
        watermarks.now_ms = 0
        watermarks.inputs_ms.clear()
        advance(watermark_ms, reports)

    watermarks.advance = back


def the_watermark_has_no_delay(core):
    delays_ms = core.cut.builder.watermarks.delays_ms
    delays_ms.update(dict.fromkeys(delays_ms, 0))


def rows_are_late_by_their_own_batch(core):
    watermarks, advance = core.cut.builder.watermarks, core.cut.builder.watermarks.advance

    def eager(watermark_ms, reports):
        advance(watermark_ms, reports)
        watermarks.late_ms = watermarks.now_ms

    watermarks.advance = eager


# -- restarts -----------------------------------------------------------------------------------------------------------


def an_epoch_is_no_progress(core):
    committed = core.on_epoch_committed

    def commits(event):
        effects = committed(event)
        core.progressed = False
        return effects

    core.on_epoch_committed = commits


def every_incarnation_makes_progress(core):
    core.progressed = True


def a_decision_that_is_overdue_is_taken_for_made(core):
    asked, handle = [], core.handle

    def hopeful(event, now_ms):
        if isinstance(event, CommitOverdue):
            event = EpochCommitted(asked[-1].manifest.model_copy(update={"attempt": "none"}), asked[-1].names)
        effects = handle(event, now_ms)
        asked.extend(each for each in effects if isinstance(each, CommitEpoch))
        return effects

    core.handle = hopeful


def a_decision_that_is_overdue_is_waited_for_for_ever(core):
    """The driver's wait ends, and the incarnation does not."""
    handle = core.handle
    core.handle = lambda event, now_ms: (
        [] if isinstance(event, CommitOverdue) or _is_store_bound(core, event) else handle(event, now_ms)
    )


def _is_store_bound(core, event):
    return isinstance(event, TimeoutElapsed) and core.phase is EpochPhase.COMMITTING


PLANTED = [
    a_decision_that_is_overdue_is_taken_for_made,
    a_decision_that_is_overdue_is_waited_for_for_ever,
    a_batch_that_ends_before_its_epoch_is_open_is_forgotten,
    an_epoch_that_waits_to_be_opened_reads_on,
    a_job_drains_with_an_epoch_that_was_complete_before,
    marker_ends_an_epoch_in_every_batch,
    late_barrier_ends_the_open_epoch,
    opening_marker_ends_an_epoch,
    aborted_rows_are_dropped,
    aborted_rows_come_last,
    aborted_epoch_leaves_the_chains,
    rows_of_an_ended_epoch_stay_open,
    changes_replace_the_chain,
    a_full_file_is_left_out,
    cursors_are_those_before_the_barriers_batch,
    only_one_sink_is_staged,
    only_one_operator_is_part_of_the_epoch,
    the_groups_of_one_operator_are_enough,
    snapshots_go_by_the_groups_number_alone,
    files_of_later_batches_come_first,
    restored_cursors_are_forgotten,
    restored_state_is_forgotten,
    numbers_go_on_from_the_base,
    the_base_stays_the_restored_epoch,
    unpublished_epochs_are_forgotten,
    a_fence_of_the_log_counts_as_stored,
    a_fenced_sink_is_tried_for_ever,
    a_failed_publish_counts_as_done,
    published_epochs_are_not_remembered,
    acks_are_written_before_the_sink_has_the_epoch,
    the_newest_epochs_rows_are_published_for_every_epoch,
    manifests_are_forgotten_when_one_sink_has_them,
    newest_is_the_published_epoch,
    the_decisions_id_is_not_passed_to_sinks,
    an_idle_interval_is_lost,
    a_drained_job_does_not_end,
    votes_are_lost,
    a_stop_is_not_heard,
    a_savepoints_name_is_dropped,
    a_savepoint_names_the_epoch_before,
    aborted_counts_are_dropped,
    rows_are_counted_at_every_sink,
    only_the_newest_file_of_a_chain_is_named,
    an_epoch_is_announced_as_its_publish_is_requested,
    what_is_published_is_never_acknowledged,
    the_restored_watermark_is_forgotten,
    an_input_counts_only_while_it_has_rows,
    the_watermark_is_that_of_the_fastest_input,
    the_watermark_is_that_of_the_newest_batch,
    the_watermark_has_no_delay,
    rows_are_late_by_their_own_batch,
    an_epoch_is_no_progress,
    every_incarnation_makes_progress,
    an_interval_is_lost_when_a_standby_begins_to_wait,
    an_epoch_names_one_source_only,
    full_files_that_a_task_has_missed_are_not_asked_for_again,
]
