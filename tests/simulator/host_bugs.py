"""Bugs planted in the rules around the machines: each changes one thing in an incarnation's core as it is made."""

from __future__ import annotations

from dataclasses import replace

from spark_ckpt.coordination.epoch_builder import Gathered
from spark_ckpt.coordination.incarnation import IncarnationCore
from spark_ckpt.coordination.markers import BARRIER, OPEN, Ahead
from spark_ckpt.coordination.messages import (
    End,
    IntervalElapsed,
    ManifestFenced,
    ManifestOverdue,
    ManifestStored,
    NameEpoch,
    Publish,
    PublishEnded,
    Reason,
    Started,
    StopRequested,
    StoreEpoch,
    StoreManifest,
    TimerRanOut,
)
from spark_ckpt.epochs.records import SinkAck
from spark_ckpt.errors import Fenced


def core_with(plant):
    """The shipped core with `plant(core)` done to it. Raises `AttributeError` if the plant sets a name that is not there."""

    def made(shape, point, acked, standing):
        core = IncarnationCore(shape, point, standing, acked)
        known = {id(part): (part, {*dir(part)}) for part in parts_of(core)}
        plant(core)
        for part, names in known.values():
            if unknown := {*dir(part)} - names:
                raise AttributeError(f"{type(part).__name__} has no {', '.join(sorted(unknown))}: nothing is planted")
        return core

    return made


def parts_of(core):
    """The core and every object of the product that it holds, at any depth."""
    found, todo = [], [core]
    while todo:
        part = todo.pop()
        if type(part).__module__.startswith("spark_ckpt.coordination") and all(part is not each for each in found):
            found.append(part)
            todo += vars(part).values() if hasattr(part, "__dict__") else ()
        elif isinstance(part, dict):
            todo += part.values()
    return found


# -- which batch ends an epoch ------------------------------------------------------------------------------------------


def marker_ends_an_epoch_in_every_batch(core):
    """The marker stays the source's offset until the next one; only the first batch that has it counts."""
    markers = core._markers

    def ended_by(count, open_epoch):
        reached = markers._offered[count]
        return reached.epoch if reached.kind == BARRIER and reached.epoch == open_epoch else None

    markers.ended_by = ended_by


def late_barrier_ends_the_open_epoch(core):
    markers, ended_by = core._markers, core._markers.ended_by

    def any_barrier(count, open_epoch):
        before = markers._reached.number
        ended_by(count, open_epoch)
        return open_epoch if markers._reached.number > before and markers._reached.kind == BARRIER else None

    markers.ended_by = any_barrier


def opening_marker_ends_an_epoch(core):
    markers = core._markers
    markers.ended_by = lambda count, open_epoch: open_epoch if markers._offered[count].kind == OPEN else None


def a_batch_that_ends_before_its_epoch_is_open_is_forgotten(core):
    class Forgets(Ahead):
        def hold(self, votes):
            self.over()

    core._ahead = Forgets()


def an_epoch_that_waits_to_be_opened_reads_on(core):
    """Its cut is that of its barrier's batch, not of the newest one."""
    take = core._builder.take
    core._builder.take = lambda epoch: replace(take(epoch), cursors=dict(core._cursors))


def a_job_drains_with_an_epoch_that_was_complete_before(core):
    """The final epoch lacks what came behind it."""
    take_in = core._take_in

    def hurried(event, now_ms):
        ahead, drains = core._ahead, event.drained
        effects = take_in(event, now_ms)
        if drains and ahead.is_held and not core._drained:
            core._drained = True
            effects += core._coordinated(now_ms, StopRequested(Reason.DRAINED))
        return effects

    core._take_in = hurried


# -- what belongs to an epoch -------------------------------------------------------------------------------------------


def aborted_rows_are_dropped(core):
    core._builder.aborted = lambda epoch: core._builder._ended.pop(epoch, None)


def aborted_rows_come_last(core):
    builder = core._builder

    def aborted(epoch):
        ended = builder._ended.pop(epoch, None)
        if ended is not None:
            builder._open, builder._moved = builder._open.put_before(ended.gathered), True

    builder.aborted = aborted


def aborted_epoch_leaves_the_chains(core):
    builder, aborted = core._builder, core._builder.aborted

    def without_its_files(epoch):
        aborted(epoch)
        builder._chains = {
            group: tuple(file for file in files if file.epoch != epoch) for group, files in builder._chains.items()
        }

    builder.aborted = without_its_files


def rows_of_an_ended_epoch_stay_open(core):
    builder, end = core._builder, core._builder.end

    def ends(epoch, cursors):
        gathered = builder._open
        ended = end(epoch, cursors)
        builder._open = gathered
        return ended

    builder.end = ends


def changes_replace_the_chain(core):
    builder, snapshot = core._builder, core._builder._snapshot

    def alone(group, body):
        builder._chains.pop(group, None)
        snapshot(group, body)

    builder._snapshot = alone


def a_full_file_is_left_out(core):
    builder, snapshot = core._builder, core._builder._snapshot
    builder._snapshot = lambda group, body: (
        None if body.get("file") and body["file"]["kind"] == "full" else snapshot(group, body)
    )


def cursors_are_those_before_the_barriers_batch(core):
    end, add, before = core._builder.end, core._builder.add, [dict(core.cursors)]

    def adds(watermark_ms, reports, *others):
        before.append(dict(core.cursors))
        return add(watermark_ms, reports, *others)

    core._builder.add = adds
    core._builder.end = lambda epoch, cursors: end(epoch, before[-2])


def only_one_sink_is_staged(core):
    core._shape = replace(core._shape, sinks=dict(list(core._shape.sinks.items())[:1]))


def only_one_operator_is_part_of_the_epoch(core):
    core._shape = replace(core._shape, operators=core._shape.operators[:1])


def the_groups_of_one_operator_are_enough(core):
    whole, groups = core._shape, core._shape.operators[:1]
    coordinated = core._coordinated

    def started(now_ms, *events):
        if any(isinstance(event, Started) for event in events):
            owed = dict(core._machine.unpublished)
            core._machine = replace(whole, operators=groups).coordinator(core._incarnation, core._previous, owed)
        return coordinated(now_ms, *events)

    core._coordinated = started


def snapshots_go_by_the_groups_number_alone(core):
    builder, snapshot = core._builder, core._builder._snapshot
    first = core._shape.operators[0].name
    builder._snapshot = lambda group, body: snapshot((first, group[1]), body)


def files_of_later_batches_come_first(core):
    builder = core._builder
    add = builder.add

    def adds(watermark_ms, reports, *others):
        before, builder._open = builder._open, Gathered()
        counts = add(watermark_ms, reports, *others)
        builder._open = builder._open.put_before(before)
        return counts

    builder.add = adds


# -- where an incarnation stands ----------------------------------------------------------------------------------------


def restored_cursors_are_forgotten(core):
    core._cursors = {}


def restored_state_is_forgotten(core):
    core._builder._chains = {}


def numbers_go_on_from_the_base(core):
    """The number of an epoch that was decided is given again."""
    core._previous = max(0, core._base.epoch - 1)


def the_base_stays_the_restored_epoch(core):
    base, decided = core._base, core._decided

    def stays(event, now_ms):
        effects = decided(event, now_ms)
        core._base = base
        return effects

    core._decided = stays


def what_is_owed_is_forgotten(core):
    core._point = replace(core._point, unpublished={})


def a_fence_of_the_log_counts_as_stored(core):
    handled = core._handled
    last = []

    def taken(event, now_ms):
        if isinstance(event, ManifestFenced) and last:
            event = ManifestStored(last[-1])
        effects = handled(event, now_ms)
        last.extend(effect.manifest for effect in effects if hasattr(effect, "manifest") and hasattr(effect, "names"))
        return effects

    core._handled = taken


def a_fenced_sink_is_tried_for_ever(core):
    handled = core._handled

    def taken(event, now_ms):
        if isinstance(event, PublishEnded) and isinstance(event.error, Fenced):
            return [Publish(event.sink, core._publication.output(event.sink, event.epoch, core._previous))]
        return [effect for effect in handled(event, now_ms) if not isinstance(effect, End)]

    core._handled = taken


# -- what sinks are owed ------------------------------------------------------------------------------------------------


def a_failed_publish_counts_as_done(core):
    handled = core._handled
    core._handled = lambda event, now_ms: handled(
        replace(event, error=None)
        if isinstance(event, PublishEnded) and event.error is not None and event.error.retriable
        else event,
        now_ms,
    )


def published_epochs_are_not_remembered(core):
    core._publication._acked = _Forgetful()


class _Forgetful(dict):
    def __setitem__(self, key, value):
        pass


def acks_are_written_before_the_sink_has_the_epoch(core):
    output = core._publication.output

    def early(sink, epoch, newest):
        core._publication._acks.append(SinkAck(sink=sink, epoch=epoch))
        return output(sink, epoch, newest)

    core._publication.output = early


def the_newest_epochs_rows_are_published_for_every_epoch(core):
    publication, output = core._publication, core._publication.output

    def newest_rows(sink, epoch, newest):
        newest_files = output(sink, max(publication._decided), newest).files
        return replace(output(sink, epoch, newest), files=newest_files)

    publication.output = newest_rows


def manifests_are_forgotten_when_one_sink_has_them(core):
    forget = core._publication.forget
    core._publication.forget = lambda owed: forget(set(sorted(owed)[1:]))


def newest_is_the_published_epoch(core):
    output = core._publication.output
    core._publication.output = lambda sink, epoch, newest: output(sink, epoch, epoch)


def the_decisions_id_is_not_told(core):
    output = core._publication.output
    core._publication.output = lambda sink, epoch, newest: replace(
        output(sink, epoch, newest), decision=f"{core._point.incarnation}/{epoch}"
    )


# -- when ---------------------------------------------------------------------------------------------------------------


def an_idle_interval_is_lost(core):
    handled = core._handled

    def taken(event, now_ms):
        effects = handled(event, now_ms)
        if isinstance(event, TimerRanOut) and isinstance(event.elapsed, IntervalElapsed):
            core._idle_interval = None
        return effects

    core._handled = taken


def a_job_that_has_drained_is_not_told(core):
    handled = core._handled
    core._handled = lambda event, now_ms: handled(
        replace(event, drained=False) if hasattr(event, "drained") else event, now_ms
    )


def votes_are_lost(core):
    core._votes = lambda epoch: [core._builder.end(epoch, core._cursors)][1:]


def a_stop_is_not_heard(core):
    handled = core._handled
    core._handled = lambda event, now_ms: [] if isinstance(event, StopRequested) else handled(event, now_ms)


def a_savepoints_name_is_dropped(core):
    effects_of = core._of
    core._of = lambda effect, now_ms: effects_of(
        replace(effect, names=()) if isinstance(effect, StoreEpoch) else effect, now_ms
    )


def a_savepoint_names_the_epoch_before(core):
    handled = core._handled

    def taken(event, now_ms):
        before = core._base.epoch
        return [
            replace(effect, epoch=before) if isinstance(effect, NameEpoch) else effect
            for effect in handled(event, now_ms)
        ]

    core._handled = taken


# -- what is said of an epoch -------------------------------------------------------------------------------------------


def aborted_counts_are_dropped(core):
    builder, aborted = core._builder, core._builder.aborted

    def without_counts(epoch):
        ended = builder._ended.get(epoch)
        if ended is not None:
            ended.gathered.rows_in = ended.gathered.rows_out = 0
        aborted(epoch)

    builder.aborted = without_counts


def rows_are_counted_at_every_sink(core):
    builder, add = core._builder, core._builder.add

    def adds(watermark_ms, reports, *others):
        before = builder._open.rows_out
        counts = add(watermark_ms, reports, *others)
        builder._open.rows_out = before + sum(each.body.get("rows", 0) for each in reports)
        return counts

    builder.add = adds


def only_the_newest_file_of_a_chain_is_named(core):
    end = core._builder.end

    def ends(epoch, cursors):
        ended = end(epoch, cursors)
        ended = replace(ended, chains={group: files[-1:] for group, files in ended.chains.items()})
        core._builder._ended[epoch] = ended
        return ended

    core._builder.end = ends


def a_replaced_driver_announces_what_its_successor_published(core):
    handled = core._handled
    core._handled = lambda event, now_ms: handled(
        replace(event, newest=0) if isinstance(event, PublishEnded) else event, now_ms
    )


def what_is_published_is_never_acknowledged(core):
    publication, published = core._publication, core._publication.published

    def forgetful(event):
        detail = published(event)
        publication._acks.clear()
        return detail

    publication.published = forgetful


def the_restored_watermark_is_forgotten(core):
    watermarks = core._builder.watermarks
    watermarks.now_ms = watermarks._base_ms = 0
    watermarks._inputs_ms.clear()


def an_input_counts_only_while_it_has_rows(core):
    watermarks, advance = core._builder.watermarks, core._builder.watermarks.advance

    def hasty(watermark_ms, reports):
        watermarks._inputs_ms.clear()
        advance(watermark_ms, reports)
        watermarks.now_ms = max([watermarks.now_ms, *list(watermarks._inputs_ms.values())[:1]])

    watermarks.advance = hasty


def the_watermark_is_that_of_the_fastest_input(core):
    watermarks, advance = core._builder.watermarks, core._builder.watermarks.advance

    def hasty(watermark_ms, reports):
        advance(watermark_ms, reports)
        watermarks.now_ms = max([watermarks.now_ms, *watermarks._inputs_ms.values()])

    watermarks.advance = hasty


def the_watermark_is_that_of_the_newest_batch(core):
    watermarks, advance = core._builder.watermarks, core._builder.watermarks.advance

    def back(watermark_ms, reports):
        watermarks.now_ms = 0
        watermarks._inputs_ms.clear()
        advance(watermark_ms, reports)

    watermarks.advance = back


def the_watermark_has_no_delay(core):
    delays_ms = core._builder.watermarks._delays_ms
    delays_ms.update(dict.fromkeys(delays_ms, 0))


def rows_are_late_by_their_own_batch(core):
    watermarks, advance = core._builder.watermarks, core._builder.watermarks.advance

    def eager(watermark_ms, reports):
        advance(watermark_ms, reports)
        watermarks.late_ms = watermarks.now_ms

    watermarks.advance = eager


# -- whether another incarnation follows --------------------------------------------------------------------------------


def an_epoch_is_no_progress(core):
    decided = core._decided

    def decides(event, now_ms):
        effects = decided(event, now_ms)
        core._progressed = False
        return effects

    core._decided = decides


def every_incarnation_makes_progress(core):
    core._progressed = True


def a_decision_that_is_overdue_is_taken_for_made(core):
    asked, handled = [], core._handled

    def hopeful(event, now_ms):
        if isinstance(event, ManifestOverdue):
            event = ManifestStored(asked[-1].manifest.model_copy(update={"attempt": "none"}), asked[-1].names)
        effects = handled(event, now_ms)
        asked.extend(each for each in effects if isinstance(each, StoreManifest))
        return effects

    core._handled = hopeful


def a_decision_that_is_overdue_is_waited_for_for_ever(core):
    """The driver waits no longer, and nobody ends the incarnation."""
    handled = core._handled
    core._handled = lambda event, now_ms: (
        [] if isinstance(event, ManifestOverdue) or _is_store_bound(core, event) else handled(event, now_ms)
    )


def _is_store_bound(core, event):
    return isinstance(event, TimerRanOut) and event.elapsed == core._store_bound


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
    what_is_owed_is_forgotten,
    a_fence_of_the_log_counts_as_stored,
    a_fenced_sink_is_tried_for_ever,
    a_failed_publish_counts_as_done,
    published_epochs_are_not_remembered,
    acks_are_written_before_the_sink_has_the_epoch,
    the_newest_epochs_rows_are_published_for_every_epoch,
    manifests_are_forgotten_when_one_sink_has_them,
    newest_is_the_published_epoch,
    the_decisions_id_is_not_told,
    an_idle_interval_is_lost,
    a_job_that_has_drained_is_not_told,
    votes_are_lost,
    a_stop_is_not_heard,
    a_savepoints_name_is_dropped,
    a_savepoint_names_the_epoch_before,
    aborted_counts_are_dropped,
    rows_are_counted_at_every_sink,
    only_the_newest_file_of_a_chain_is_named,
    what_is_published_is_never_acknowledged,
    the_restored_watermark_is_forgotten,
    an_input_counts_only_while_it_has_rows,
    the_watermark_is_that_of_the_fastest_input,
    the_watermark_is_that_of_the_newest_batch,
    the_watermark_has_no_delay,
    rows_are_late_by_their_own_batch,
    an_epoch_is_no_progress,
    every_incarnation_makes_progress,
]
