"""Bugs planted in what an incarnation does about edges: each changes one thing, in its core as it is made or in one function."""

from __future__ import annotations

from dataclasses import replace

from checkpoint_lab import spark_batches
from spark_ckpt.coordination import edges, epoch_builder, incarnation, reports
from spark_ckpt.coordination.edges import EdgeLog, Edges
from spark_ckpt.coordination.incarnation import IncarnationCore
from spark_ckpt.epochs.records import Manifest

NOTHING = Manifest(job="job", epoch=0, incarnation=0, attempt="", created_ms=0)


def logs(core):
    return core._builder._edges._logs.values()


# -- where an incarnation begins ----------------------------------------------------------------------------------------


def what_was_in_flight_is_not_put_back(core):
    core.__class__ = type("PutsNothingBack", (IncarnationCore,), {"in_flight": property(lambda core: {})})


def what_was_in_flight_is_forgotten(core):
    core._builder._edges = Edges(core._shape.edges, NOTHING)


def what_was_in_flight_is_put_back_newest_first(core):
    in_flight = IncarnationCore.in_flight.fget
    turned = property(lambda core: {name: list(reversed(segments)) for name, segments in in_flight(core).items()})
    core.__class__ = type("PutsBackTurned", (IncarnationCore,), {"in_flight": turned})


def consumed_rows_count_from_the_incarnations_beginning(core):
    for log in logs(core):
        log._consumed_rows = 0


def consumed_rows_count_from_what_was_produced(core):
    for log in logs(core):
        log._consumed_rows += log.rows


# -- what a batch does --------------------------------------------------------------------------------------------------


def a_batchs_own_segments_come_into_the_next_cut(core):
    """The cut is taken as if the barrier's batch had not put anything on yet."""
    for log in logs(core):
        late = []

        def advance(taken, produced, log=log, late=late):
            arrived, late[:] = list(late), produced
            return EdgeLog.advance(log, taken, arrived)

        log.advance = advance


def a_batch_counts_as_having_taken_everything(core):
    for log in logs(core):
        log.advance = lambda taken, produced, log=log: EdgeLog.advance(log, log._taken + len(log._in_flight), produced)


def the_segments_of_every_batch_are_consumed_from_the_newest(core):
    for log in logs(core):

        def advance(taken, produced, log=log):
            log._in_flight.reverse()
            consumed = EdgeLog.advance(log, taken, [])
            log._in_flight.reverse()
            log._in_flight += produced
            return consumed

        log.advance = advance


def a_batch_consumes_what_the_one_before_it_did(core):
    for log in logs(core):
        before = [0]

        def advance(taken, produced, log=log, before=before):
            one_late, before[0] = before[0], taken
            return EdgeLog.advance(log, one_late, produced)

        log.advance = advance


def a_loop_at_work_is_idle(core):
    builder, add = core._builder, core._builder.add

    def adds(watermark_ms, reports, moved=False, taken=None):
        before = builder._moved
        counts = add(watermark_ms, reports, moved, taken)
        builder._moved = before or moved
        return counts

    builder.add = adds


# -- what belongs to an epoch -------------------------------------------------------------------------------------------


def the_cut_is_of_the_epochs_beginning(core):
    builder, end, newest = core._builder, core._builder.end, [core._builder._edges.cuts()]

    def ends(epoch, cursors):
        newest.append(builder._edges.cuts())
        ended = builder._ended[epoch] = replace(end(epoch, cursors), edges=newest[-2])
        return ended

    builder.end = ends


def an_epoch_names_one_edge_only(core):
    cuts = core._builder._edges.cuts
    core._builder._edges.cuts = lambda: dict(list(cuts().items())[:1])


def an_aborted_epochs_segments_are_forgotten(core):
    builder, aborted = core._builder, core._builder.aborted

    def forgets(epoch):
        if epoch in builder._ended:
            builder._ended[epoch].gathered.passed = {}
        aborted(epoch)

    builder.aborted = forgets


def an_aborted_epochs_segments_are_given_up_twice(core):
    builder, aborted = core._builder, core._builder.aborted

    def doubles(epoch):
        ended = builder._ended.get(epoch)
        if ended is not None:
            ended.gathered.passed = {name: [*segments, *segments] for name, segments in ended.gathered.passed.items()}
        aborted(epoch)

    builder.aborted = doubles


# -- what is given up ---------------------------------------------------------------------------------------------------


def an_aborted_epoch_gives_up_what_it_consumed(core):
    """Its batches belong to the next epoch, and so does what they consumed: the base may name it."""
    builder, aborted, pending = core._builder, core._builder.aborted, {}
    decided = builder.decided

    def gives_up(epoch):
        if epoch in builder._ended:
            passed, builder._ended[epoch].gathered.passed = builder._ended[epoch].gathered.passed, {}
            for name, segments in passed.items():
                pending.setdefault(name, []).extend(replace(each) for each in segments)
        aborted(epoch)

    def given(epoch):
        found = decided(epoch)
        core._base = core._base.model_copy(update={"edges": {} if pending else core._base.edges})
        everything = {name: [*pending.get(name, ()), *found.get(name, ())] for name in {**pending, **found}}
        pending.clear()
        return everything

    builder.aborted, builder.decided = gives_up, given


def what_is_still_in_flight_is_given_up(core):
    builder, decided = core._builder, core._builder.decided

    def everything(epoch):
        given, in_flight = decided(epoch), builder.in_flight
        return {name: [*given.get(name, ()), *in_flight[name]] for name in in_flight}

    builder.decided = everything


# -- when ---------------------------------------------------------------------------------------------------------------


def a_job_has_drained_although_rows_are_in_flight(core):
    core._builder.__class__ = type(
        "SeesNothing", (epoch_builder.EpochBuilder,), {"rows_in_flight": property(lambda builder: {})}
    )


def a_job_has_drained_when_its_first_edge_is_empty(core):
    rows = lambda builder: dict(list(builder._edges.rows.items())[1:])  # noqa: E731
    core._builder.__class__ = type("SeesOne", (epoch_builder.EpochBuilder,), {"rows_in_flight": property(rows)})


PLANTED = [
    what_was_in_flight_is_not_put_back,
    what_was_in_flight_is_forgotten,
    what_was_in_flight_is_put_back_newest_first,
    consumed_rows_count_from_the_incarnations_beginning,
    consumed_rows_count_from_what_was_produced,
    a_batchs_own_segments_come_into_the_next_cut,
    a_batch_counts_as_having_taken_everything,
    the_segments_of_every_batch_are_consumed_from_the_newest,
    a_batch_consumes_what_the_one_before_it_did,
    a_loop_at_work_is_idle,
    the_cut_is_of_the_epochs_beginning,
    an_epoch_names_one_edge_only,
    an_aborted_epochs_segments_are_forgotten,
    an_aborted_epochs_segments_are_given_up_twice,
    an_aborted_epoch_gives_up_what_it_consumed,
    what_is_still_in_flight_is_given_up,
    a_job_has_drained_although_rows_are_in_flight,
    a_job_has_drained_when_its_first_edge_is_empty,
]


# -- functions ----------------------------------------------------------------------------------------------------------


def everything_consumed_is_given_up(patch):
    patch(incarnation, "consumed_segments", lambda passed, base: {name: tuple(f.path for f in segments) for name, segments in passed.items()})  # fmt: skip # noqa: E501


def nothing_is_given_up(patch):
    patch(incarnation, "consumed_segments", lambda passed, base: {})


def what_is_given_up_is_looked_for_on_another_edge(patch):
    consumed_segments = edges.consumed_segments
    turned = lambda base: base.model_copy(  # noqa: E731
        update={"edges": dict(zip(base.edges, reversed(base.edges.values()), strict=True))}
    )
    patch(incarnation, "consumed_segments", lambda passed, base: consumed_segments(passed, turned(base)))


def segments_of_every_attempt_count(patch):
    place = reports._place
    patch(reports, "_place", lambda each: (*place(each), each.attempt if reports.edge_of(each) else 0))


def segments_come_out_newest_first(patch):
    segments_in = edges.segments_in
    turned = lambda each: {name: list(reversed(found)) for name, found in segments_in(each).items()}  # noqa: E731
    patch(epoch_builder, "segments_in", turned)
    patch(spark_batches, "segments_in", turned)


def segments_are_counted_in_another_order_than_they_come_out(patch):
    segments_in = edges.segments_in
    turned = lambda each: {name: list(reversed(found)) for name, found in segments_in(each).items()}  # noqa: E731
    patch(epoch_builder, "segments_in", turned)


def one_tasks_segments_are_lost(patch):
    segments_in = edges.segments_in
    only = lambda each: {name: [f for f in found if f.task == 0] for name, found in segments_in(each).items()}  # noqa: E731
    patch(epoch_builder, "segments_in", only)
    patch(spark_batches, "segments_in", only)


def a_large_segment_never_leaves_its_edge(patch):
    patch(edges.Bound, "portion", lambda self, segments: sum(each.rows < 2 for each in segments))


def sources_rest_while_an_edge_holds_nothing(patch):
    patch(edges.Bound, "full", lambda self, rows: tuple(name for name, held in rows.items() if held <= self.rows))


PATCHED = [
    everything_consumed_is_given_up,
    nothing_is_given_up,
    what_is_given_up_is_looked_for_on_another_edge,
    segments_of_every_attempt_count,
    segments_come_out_newest_first,
    segments_are_counted_in_another_order_than_they_come_out,
    one_tasks_segments_are_lost,
    a_large_segment_never_leaves_its_edge,
    sources_rest_while_an_edge_holds_nothing,
]
