"""Bugs planted in a sink's early sends: rows that it gets before their epoch commits."""

from __future__ import annotations

from checkpoint_lab.spark_driver import SparkDriver
from checkpoint_lab.spark_sink import SparkSink
from spark_ckpt.connector_parts.early_sends import SentEarly


def rows_are_committed_before_the_decision(patch):
    """The rows are committed early, the marker with the decision; rows in the transaction are not sent again."""
    send_early = SparkSink.send_early

    def committed(sink, shared, staged, how, session):
        try:
            return send_early(sink, shared, staged, how, session)
        finally:
            sink.rows, sink.early_rows = [*sink.rows, *sink.early_rows], []

    patch(SparkSink, "send_early", committed)


def rows_of_an_attempt_that_was_given_up_stay_in_the_transaction(patch):
    """The transaction is aborted neither with its epoch nor for files with another number, which are added to it."""

    def keeps_them(sink, epoch, incarnation, files):
        sent = sink.ahead
        rest = sent.rest_of(epoch, incarnation, [file.path for file in files]) if sent else None
        return files if rest is None else files[len(files) - len(rest) :]

    patch(SparkSink, "rest_of", keeps_them)
    patch(SparkDriver, "drop_early_send", lambda driver, sink: driver.lanes[sink.name].waiting.popleft())


def what_was_sent_ahead_is_sent_again(patch):
    """All files of the epoch go into the transaction, which holds some of them already."""
    rest_of = SentEarly.rest_of

    def everything(sent, epoch, incarnation, files):
        return None if rest_of(sent, epoch, incarnation, files) is None else files

    patch(SentEarly, "rest_of", everything)


def a_new_incarnation_commits_what_a_zombie_has_open(patch):
    """Opening a publisher aborts no transaction, and the owner of the rows is not checked."""

    def opened(sink, incarnation):
        sink.fence, sink.session = incarnation, sink.session + 1
        return sink.session

    patch(SparkSink, "open", opened)
    patch(SentEarly, "rest_of", lambda sent, epoch, incarnation, files: files[len(sent.files) :])


def rows_of_a_later_batch_are_sent_in_front(patch):
    send_early = SparkSink.send_early

    def turned(sink, shared, staged, how, session):
        before = list(sink.early_rows)
        try:
            return send_early(sink, shared, staged, how, session)
        finally:
            if before and sink.early_rows[: len(before)] == before:
                sink.early_rows = [*sink.early_rows[len(before) :], *before]

    patch(SparkSink, "send_early", turned)


def a_transaction_that_timed_out_is_committed_as_if_it_were_whole(patch):
    """Its rows are lost and are not sent again."""

    def lost(sink):
        sink.early_rows = []

    patch(SparkSink, "lose", lost)


def a_commit_that_comes_late_counts_behind_its_successor(patch):
    """The newer publisher's init does not fence the late commit."""
    lose = SparkSink.lose

    def kept(sink):
        late = sink.late
        lose(sink)
        sink.late = late

    def landed(sink):
        if sink.late is not None:
            object.__setattr__(sink.late, "session", sink.session)
        LAND(sink)

    patch(SparkSink, "lose", kept)
    patch(SparkSink, "land", landed)


LAND = SparkSink.land

PLANTED_AHEAD = [
    rows_are_committed_before_the_decision,
    rows_of_an_attempt_that_was_given_up_stay_in_the_transaction,
    what_was_sent_ahead_is_sent_again,
    a_new_incarnation_commits_what_a_zombie_has_open,
    rows_of_a_later_batch_are_sent_in_front,
    a_transaction_that_timed_out_is_committed_as_if_it_were_whole,
    a_commit_that_comes_late_counts_behind_its_successor,
]
