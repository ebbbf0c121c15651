"""Bugs planted in an incarnation's edges: each changes one thing, in its core after its creation or in one function."""

from __future__ import annotations

from dataclasses import replace

from checkpoint_lab import spark_batches
from spark_ckpt.coordination import cut, edges, reports
from spark_ckpt.coordination.cut import Cut, EpochBuilder
from spark_ckpt.coordination.edges import EdgeLog, Edges
from spark_ckpt.epochs.records import Manifest

NOTHING = Manifest(job="job", epoch=0, incarnation=0, attempt="", created_ms=0)


def logs(core):
    return core.cut.builder.edges.logs.values()


# -- begin of an incarnation --------------------------------------------------------------------------------------------


def what_was_in_flight_is_not_put_back(core):
    core.cut.__class__ = type("PutsNothingBack", (Cut,), {"in_flight": property(lambda cut: {})})


def what_was_in_flight_is_forgotten(core):
    core.cut.builder.edges = Edges(core.shape.edges, NOTHING)


def what_was_in_flight_is_put_back_newest_first(core):
    in_flight = Cut.in_flight.fget
    turned = property(lambda cut: {name: list(reversed(segments)) for name, segments in in_flight(cut).items()})
    core.cut.__class__ = type("PutsBackTurned", (Cut,), {"in_flight": turned})


def consumed_rows_count_from_the_incarnations_beginning(core):
    for log in logs(core):
        log.consumed_rows = 0


def consumed_rows_count_from_what_was_produced(core):
    for log in logs(core):
        log.consumed_rows += log.rows


# -- batches ------------------------------------------------------------------------------------------------------------


def a_batchs_own_segments_come_into_the_next_cut(core):
    """The cut is taken without the segments of the barrier's batch."""
    for log in logs(core):
        late = []

        def advance(taken, produced, log=log, late=late):
            arrived, late[:] = list(late), produced
            return EdgeLog.advance(log, taken, arrived)

        log.advance = advance


def a_batch_counts_as_having_taken_everything(core):
    for log in logs(core):
        log.advance = lambda taken, produced, log=log: EdgeLog.advance(log, log.taken + len(log.segments), produced)


def the_segments_of_every_batch_are_consumed_from_the_newest(core):
    for log in logs(core):

        def advance(taken, produced, log=log):
            log.segments.reverse()
            consumed = EdgeLog.advance(log, taken, [])
            log.segments.reverse()
            log.segments += produced
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
    builder, add = core.cut.builder, core.cut.builder.add

    def adds(watermark_ms, reports, moved=False, taken=None):
        before = builder.moved
        counts = add(watermark_ms, reports, moved, taken)
        builder.moved = before or moved
        return counts

    builder.add = adds


# -- content of an epoch ------------------------------------------------------------------------------------------------


def the_cut_is_of_the_epochs_beginning(core):
    builder, end, newest = core.cut.builder, core.cut.builder.end, [core.cut.builder.edges.cuts()]

    def ends(epoch, cursors):
        newest.append(builder.edges.cuts())
        ended = builder.closed[epoch] = replace(end(epoch, cursors), edges=newest[-2])
        return ended

    builder.end = ends


def an_epoch_names_one_edge_only(core):
    cuts = core.cut.builder.edges.cuts
    core.cut.builder.edges.cuts = lambda: dict(list(cuts().items())[:1])


def an_aborted_epochs_segments_are_forgotten(core):
    builder, aborted = core.cut.builder, core.cut.builder.aborted

    def forgets(epoch):
        if epoch in builder.closed:
            builder.closed[epoch].gathered.passed = {}
        aborted(epoch)

    builder.aborted = forgets


def an_aborted_epochs_segments_are_given_up_twice(core):
    builder, aborted = core.cut.builder, core.cut.builder.aborted

    def doubles(epoch):
        ended = builder.closed.get(epoch)
        if ended is not None:
            ended.gathered.passed = {name: [*segments, *segments] for name, segments in ended.gathered.passed.items()}
        aborted(epoch)

    builder.aborted = doubles


# -- released segments --------------------------------------------------------------------------------------------------


def an_aborted_epoch_gives_up_what_it_consumed(core):
    """Its batches and their consumed segments belong to the next epoch, and the base may name these segments."""
    builder, aborted, pending = core.cut.builder, core.cut.builder.aborted, {}
    decided = builder.committed

    def gives_up(epoch):
        if epoch in builder.closed:
            passed, builder.closed[epoch].gathered.passed = builder.closed[epoch].gathered.passed, {}
            for name, segments in passed.items():
                pending.setdefault(name, []).extend(replace(each) for each in segments)
        aborted(epoch)

    def given(epoch):
        found = decided(epoch)
        core.cut.base = core.cut.base.model_copy(update={"edges": {} if pending else core.cut.base.edges})
        everything = {name: [*pending.get(name, ()), *found.get(name, ())] for name in {**pending, **found}}
        pending.clear()
        return everything

    builder.aborted, builder.committed = gives_up, given


def what_is_still_in_flight_is_given_up(core):
    builder, decided = core.cut.builder, core.cut.builder.committed

    def everything(epoch):
        given, in_flight = decided(epoch), builder.in_flight
        return {name: [*given.get(name, ()), *in_flight[name]] for name in in_flight}

    builder.committed = everything


# -- drain --------------------------------------------------------------------------------------------------------------


def a_job_has_drained_although_rows_are_in_flight(core):
    core.cut.builder.__class__ = type("SeesNothing", (EpochBuilder,), {"rows_in_flight": property(lambda builder: {})})


def a_job_has_drained_when_its_first_edge_is_empty(core):
    rows = lambda builder: dict(list(builder.edges.rows.items())[1:])  # noqa: E731
    core.cut.builder.__class__ = type("SeesOne", (EpochBuilder,), {"rows_in_flight": property(rows)})


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
    patch(cut, "consumed_segments", lambda passed, base: {name: tuple(f.path for f in segments) for name, segments in passed.items()})  # fmt: skip # noqa: E501


def nothing_is_given_up(patch):
    patch(cut, "consumed_segments", lambda passed, base: {})


def what_is_given_up_is_looked_for_on_another_edge(patch):
    consumed_segments = edges.consumed_segments
    turned = lambda base: base.model_copy(  # noqa: E731
        update={"edges": dict(zip(base.edges, reversed(base.edges.values()), strict=True))}
    )
    patch(cut, "consumed_segments", lambda passed, base: consumed_segments(passed, turned(base)))


def segments_of_every_attempt_count(patch):
    place = reports.place_of
    patch(reports, "place_of", lambda each: (*place(each), each.attempt if reports.edge_of(each) else 0))


def segments_come_out_newest_first(patch):
    segments_in = edges.segments_in
    turned = lambda each: {name: list(reversed(found)) for name, found in segments_in(each).items()}  # noqa: E731
    patch(cut, "segments_in", turned)
    patch(spark_batches, "segments_in", turned)


def segments_are_counted_in_another_order_than_they_come_out(patch):
    segments_in = edges.segments_in
    turned = lambda each: {name: list(reversed(found)) for name, found in segments_in(each).items()}  # noqa: E731
    patch(cut, "segments_in", turned)


def one_tasks_segments_are_lost(patch):
    segments_in = edges.segments_in
    only = lambda each: {name: [f for f in found if f.task == 0] for name, found in segments_in(each).items()}  # noqa: E731
    patch(cut, "segments_in", only)
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
