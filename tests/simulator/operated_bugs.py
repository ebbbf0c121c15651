"""Bugs planted in the rules of recovery for damaged, replaced and lost output. Each changes shipped code for one test.

The first ones are faults that shipped once.
"""

from __future__ import annotations

from dataclasses import replace

from checkpoint_lab import operated_driver, spark_operated
from spark_ckpt.coordination import publication
from spark_ckpt.coordination.publication import Publication
from spark_ckpt.endpoints import identities
from spark_ckpt.epochs import identity, restore, sinks_behind, ways_back
from spark_ckpt.epochs.identity import Standing
from spark_ckpt.epochs.log_state import IncarnationEntry, LogState
from spark_ckpt.epochs.sinks_ahead import beyond, refusal
from spark_ckpt.errors import EpochDamaged
from spark_ckpt.store import epoch_log, proposals
from spark_ckpt.store.epoch_log import EpochLog


def the_recovery_advice_names_the_epoch_before(monkeypatch):
    """That epoch may defer the same rows, or be damaged itself."""

    def before(log_state, epoch, *_):
        return log_state.by_id[epoch].base if epoch in log_state.by_id else 0

    monkeypatch.setattr(ways_back, "newest_whole", before)


def sinks_that_have_not_answered_are_left_out(monkeypatch):
    monkeypatch.setattr(Publication, "unanswered", lambda self: {})


def a_damaged_newest_epoch_is_skipped(monkeypatch):
    """Its rows are published again, without an operator's decision."""
    latest = restore.latest

    def skipping(log_state, read, verify, whole):
        try:
            return latest(log_state, read, verify, whole)
        except EpochDamaged as error:
            return restore.checked(log_state, int(error.context["restore"]), "latest", read, verify, whole)

    monkeypatch.setattr(restore, "latest", skipping)


def the_error_of_a_damaged_newest_epoch_names_no_sinks(monkeypatch):
    monkeypatch.setattr(restore, "would_be_repeated", lambda *_: [])


def a_confirmation_is_named_without_the_epoch(monkeypatch):
    """A user who follows the advice restores the newest epoch."""
    known = identity.known
    monkeypatch.setattr(identity, "known", lambda *what: replace(known(*what), restore=None))


def a_new_sink_is_given_epochs_of_the_time_before(monkeypatch):
    monkeypatch.setattr(Standing, "is_before", lambda self, sink, epoch: False)


def what_a_sink_has_is_one_number(monkeypatch):
    def above(log_state, sink):
        known = log_state.acked.get(sink, 0)
        return sorted(epoch for epoch, brief in log_state.by_id.items() if epoch > known and sink in brief.sinks)

    monkeypatch.setattr(LogState, "unacked", above)


def the_error_of_a_diverged_marker_names_no_way(monkeypatch):
    monkeypatch.setattr(publication, "past_the_marker", lambda error, *_: error)


# -- others ----------------------------------------------------------------------------------------------------------------


def a_marker_of_another_branch_counts_as_published(monkeypatch):
    monkeypatch.setattr(LogState, "diverged", lambda log_state, epoch: [])


def rows_that_cannot_be_given_any_more_are_left_out(monkeypatch):
    monkeypatch.setattr(restore, "out_of_turn", lambda *_: {})


def sums_of_dropped_rows_say_that_everything_is_published(monkeypatch):
    totals = epoch_log.totals
    monkeypatch.setattr(epoch_log, "totals", lambda *given: totals(*given).model_copy(update={"owed": {}}))


def lost_epochs_stand_on_the_newest_one(monkeypatch):
    accept_loss = EpochLog.accept_loss
    monkeypatch.setattr(
        EpochLog, "accept_loss", lambda log, epoch, incarnation: _trusting(log, accept_loss, epoch, incarnation)
    )


def _trusting(log, accept_loss, epoch, incarnation):
    row_of = proposals.row_of
    latest = log.state().latest
    proposals.row_of = lambda record, *what: row_of(
        record.model_copy(update={"on": latest}) if hasattr(record, "on") else record, *what
    )
    try:
        return accept_loss(log, epoch, incarnation)
    finally:
        proposals.row_of = row_of


def an_incarnation_that_was_accepted_counts_as_one_that_the_log_saw_begin(monkeypatch):
    def loss(log_state, newest, newest_incarnation):
        accepted = IncarnationEntry(log_state.incarnation, "", 0, "", 0)
        return proposed(replace(log_state, incarnations=(accepted,)), newest, newest_incarnation)

    proposed = proposals.loss
    monkeypatch.setattr(proposals, "loss", loss)


def numbers_of_lost_epochs_are_given_again(monkeypatch):
    accept_loss = EpochLog.accept_loss
    monkeypatch.setattr(
        EpochLog, "accept_loss", lambda log, epoch, incarnation: accept_loss(log, log.state().last, incarnation)
    )


def a_source_is_compared_with_the_newest_epoch(monkeypatch):
    def newest(log_state, base, read, *more):
        found = known(log_state, base, read, *more)
        latest = max(log_state.by_id, default=0)
        return replace(found, sources=read(latest).source_identities) if latest else found

    known = identity.known
    monkeypatch.setattr(identity, "known", newest)


def a_replaced_source_goes_on_at_the_old_ones_cursor(monkeypatch):
    monkeypatch.setattr(Standing, "goes_on", lambda self, cursors: dict(cursors))


def a_start_that_looks_at_no_file_names_any_epoch(monkeypatch):
    def by_the_log_alone(log_state, target, read, _verify):
        return restore.choose(log_state, target, read, restore.no_check)

    monkeypatch.setattr(operated_driver, "choice_unseen", by_the_log_alone)


def a_new_sink_is_sent_back_to_any_epoch(monkeypatch):
    """The error names the newest epoch before the old sink's unpublished ones."""

    def every(log_state, newest, read, _verify):
        return (read(each.epoch) for each in log_state.ancestry(newest))

    monkeypatch.setattr(identities, "whole_manifests", every)


def the_damaged_file_is_looked_for_in_the_errors_words(monkeypatch):
    def by_words(error, sink, epoch, log_state, read, verify):
        found = way_back(error, sink, epoch, log_state, read, verify)
        if found is None or not isinstance(error, EpochDamaged):
            return found
        named = frozenset(file.path for file in read(epoch).outputs[sink].files if file.path in error.what)
        return restore.newest_whole(log_state(), epoch, read, verify, named)

    way_back = operated_driver.way_back
    monkeypatch.setattr(operated_driver, "way_back", by_words)


def only_the_first_sink_that_is_ahead_is_named(monkeypatch):
    """The error's command accepts an older epoch than another sink has."""

    def first(markers, log_state, store):
        ahead = [sink for sink in markers if beyond(markers[sink], log_state)]
        return refusal({sink: markers[sink] for sink in ahead[:1]}, log_state, store)

    monkeypatch.setattr(spark_operated, "refusal", first)


def a_replaced_sink_is_compared_with_the_one_before(monkeypatch):
    """The new table, which has nothing yet, was to have the epochs that the old one has acknowledged."""
    monkeypatch.setattr(sinks_behind, "endpoints_now", lambda *_: {})


def epochs_of_the_sink_before_are_lost_by_the_new_one(monkeypatch):
    """They are due to it, and no start can publish them."""
    monkeypatch.setattr(sinks_behind, "lacking_after", lambda found, *_: {each.sink: each.has for each in found})


SHIPPED_ONCE = [
    a_replaced_sink_is_compared_with_the_one_before,
    epochs_of_the_sink_before_are_lost_by_the_new_one,
    a_start_that_looks_at_no_file_names_any_epoch,
    a_new_sink_is_sent_back_to_any_epoch,
    the_damaged_file_is_looked_for_in_the_errors_words,
    the_recovery_advice_names_the_epoch_before,
    sinks_that_have_not_answered_are_left_out,
    a_damaged_newest_epoch_is_skipped,
    the_error_of_a_damaged_newest_epoch_names_no_sinks,
    a_confirmation_is_named_without_the_epoch,
    a_new_sink_is_given_epochs_of_the_time_before,
    what_a_sink_has_is_one_number,
    the_error_of_a_diverged_marker_names_no_way,
    an_incarnation_that_was_accepted_counts_as_one_that_the_log_saw_begin,
    only_the_first_sink_that_is_ahead_is_named,
]


def sinks_that_have_lost_rows_are_not_noticed(monkeypatch):
    monkeypatch.setattr(sinks_behind, "behind", lambda *_: [])


def lost_rows_are_skipped_without_a_confirmation(monkeypatch):
    shipped = operated_driver.past_losses

    def skipping(standing, confirmed, cursors, past):
        return shipped(standing, replace(confirmed, lost_rows=frozenset(past)), cursors, past)

    monkeypatch.setattr(operated_driver, "past_losses", skipping)


def a_confirmed_loss_leaves_the_cursor_before_the_lost_rows(monkeypatch):
    continues = Standing.goes_on
    monkeypatch.setattr(Standing, "goes_on", lambda self, cursors: continues(replace(self, skipped={}), cursors))


PLANTED = [
    *SHIPPED_ONCE,
    sinks_that_have_lost_rows_are_not_noticed,
    a_marker_of_another_branch_counts_as_published,
    rows_that_cannot_be_given_any_more_are_left_out,
    sums_of_dropped_rows_say_that_everything_is_published,
    lost_epochs_stand_on_the_newest_one,
    numbers_of_lost_epochs_are_given_again,
    a_source_is_compared_with_the_newest_epoch,
    a_replaced_source_goes_on_at_the_old_ones_cursor,
    lost_rows_are_skipped_without_a_confirmation,
    a_confirmed_loss_leaves_the_cursor_before_the_lost_rows,
]

SEEDS = {
    "a_replaced_sink_is_compared_with_the_one_before": 7475,
    "epochs_of_the_sink_before_are_lost_by_the_new_one": 7475,
    "sinks_that_have_lost_rows_are_not_noticed": 53,
    "a_start_that_looks_at_no_file_names_any_epoch": 1931,
    "a_new_sink_is_sent_back_to_any_epoch": 61298,
    "the_damaged_file_is_looked_for_in_the_errors_words": 1731,
    "the_recovery_advice_names_the_epoch_before": 9,
    "sinks_that_have_not_answered_are_left_out": 310,
    "a_damaged_newest_epoch_is_skipped": 702,
    "the_error_of_a_damaged_newest_epoch_names_no_sinks": 20074,
    "a_confirmation_is_named_without_the_epoch": 101326,
    "a_new_sink_is_given_epochs_of_the_time_before": 2387,
    "what_a_sink_has_is_one_number": 429,
    "the_error_of_a_diverged_marker_names_no_way": 111826,
    "an_incarnation_that_was_accepted_counts_as_one_that_the_log_saw_begin": 111826,
    "only_the_first_sink_that_is_ahead_is_named": 111826,
    "a_marker_of_another_branch_counts_as_published": 111826,
    "rows_that_cannot_be_given_any_more_are_left_out": 429,
    "sums_of_dropped_rows_say_that_everything_is_published": 429,
    "lost_epochs_stand_on_the_newest_one": 352,
    "numbers_of_lost_epochs_are_given_again": 111826,
    "a_source_is_compared_with_the_newest_epoch": 7475,
    "a_replaced_source_goes_on_at_the_old_ones_cursor": 20074,
    "lost_rows_are_skipped_without_a_confirmation": 143,
    "a_confirmed_loss_leaves_the_cursor_before_the_lost_rows": 143,
}
"""A short schedule that condemns the bug, tried first. Campaigns and searches have found them."""
CATCHERS = (*dict.fromkeys(SEEDS.values()),)
