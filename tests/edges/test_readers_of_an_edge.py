"""A reader of an edge has each row of the sender's branch once, despite restores and retention of both."""

from __future__ import annotations

from dataclasses import replace

import pytest
from reader_world import EDGE, FOREVER, READER, Reader, Rules, Sender, Wrong, campaign

from spark_ckpt.epochs import readers
from spark_ckpt.epochs.readers import Standing
from spark_ckpt.epochs.records import Position, ReaderMoved
from spark_ckpt.epochs.retention import Retention, kept_epochs

SEEDS = range(300)


@pytest.mark.parametrize("seeds", [SEEDS[:100], pytest.param(SEEDS[100:], marks=pytest.mark.long)])
def test_the_reader_has_the_rows_of_the_senders_branch_in_every_schedule(seeds: range) -> None:
    assert campaign(Rules(), seeds) > 5 * len(seeds) / 3


def by_number(log_state, position, rows_before):
    return Standing.CURRENT if position.epoch <= log_state.last else Standing.UNDONE


def never_undone(log_state, position, rows_before):
    found = readers.standing(log_state, position, rows_before)
    return Standing.CURRENT if found is Standing.UNDONE else found


def never_gone_if_the_number_fits(log_state, position, rows_before):
    return readers.standing(log_state, position.model_copy(update={"files": position.of}), rows_before)


def every_branch(log_state, edge, position):
    first = position.epoch + 1 if position.whole else position.epoch
    return [brief for brief in log_state.epochs if brief.epoch >= first]


def whole_epochs_only(log_state, edge, position):
    return readers.unread(log_state, edge, position.model_copy(update={"files": position.of}))


def readers_ignored(log_state, policy, now_ms, newest):
    return kept_epochs(replace(log_state, readers={}), policy, now_ms, newest)


def read_epochs_only(log_state, policy, now_ms, newest):
    moved = {
        name: replace(
            entry, row=entry.row.model_copy(update={"position": Position(epoch=entry.row.position.epoch + 2)})
        )
        for name, entry in log_state.readers.items()
    }
    return kept_epochs(replace(log_state, readers=moved), policy, now_ms, newest)


@pytest.mark.parametrize(
    "planted",
    [
        Rules(standing=by_number),
        Rules(standing=never_undone),
        Rules(standing=never_gone_if_the_number_fits),
        Rules(unread=every_branch),
        Rules(unread=whole_epochs_only),
        Rules(kept=readers_ignored),
        Rules(kept=read_epochs_only),
    ],
    ids=lambda rules: next(each.__name__ for each in vars(rules).values() if each.__module__ == __name__),
)
def test_a_planted_bug_is_caught(planted: Rules) -> None:
    with pytest.raises(Wrong):
        campaign(planted, SEEDS)


def sender_with(*files: int) -> Sender:
    sender = Sender(Rules())
    sender.begin(0)
    for number in files:
        sender.commit(number)
    return sender


def at(sender: Sender, epoch: int, files: int | None = None) -> Position:
    of = len(sender.files[epoch])
    return Position(epoch=epoch, attempt=f"attempt-{epoch}", files=of if files is None else files, of=of)


def standing(sender: Sender, position: Position) -> Standing:
    return Reader(sender, Rules()).standing(position)


def test_a_position_stays_current_while_the_sender_deletes_read_rows() -> None:
    sender = sender_with(1, 1, 0, 0, 0, 0)
    position = at(sender, 2)
    sender.retain(0)
    assert 2 not in sender.state.by_id
    assert standing(sender, position) is Standing.CURRENT


def test_a_position_within_a_forgotten_epoch_is_gone() -> None:
    sender = sender_with(1, 3, 0, 0, 0, 0)
    sender.retain(0)
    assert standing(sender, at(sender, 2, files=1)) is Standing.GONE


def test_a_position_before_forgotten_rows_is_gone() -> None:
    sender = sender_with(1, 1, 0, 0, 0, 0)
    sender.retain(0)
    assert standing(sender, at(sender, 1)) is Standing.GONE
    assert standing(sender, Position()) is Standing.GONE


def test_an_undone_position_is_undone_after_the_log_deleted_its_epoch_too() -> None:
    sender = sender_with(1, 1)
    undone = at(sender, 2)
    sender.begin(1)
    for _ in range(5):
        sender.commit(0)
    sender.retain(0)
    assert standing(sender, undone) is Standing.UNDONE


def test_a_position_in_another_epoch_of_the_same_number_is_undone() -> None:
    sender = sender_with(1, 1)
    assert standing(sender, at(sender, 2).model_copy(update={"attempt": "of a log that was lost"})) is Standing.UNDONE


def test_an_idle_edge_keeps_nothing_of_a_busy_sender() -> None:
    sender = sender_with(1, 1, 0, 0, 0, 0, 0)
    sender.append(ReaderMoved(reader=READER, place="p", edge=EDGE, position=at(sender, 2)))
    sender.retain(FOREVER)
    assert sorted(sender.state.by_id) == [6, 7]


def test_a_reader_that_stays_away_keeps_nothing_older_than_the_bound() -> None:
    sender = sender_with(*[1] * 8)
    sender.append(ReaderMoved(reader=READER, place="p", edge=EDGE, position=at(sender, 1)))
    old, young = sender.state.by_id[4].created_ms, sender.state.by_id[5].created_ms
    assert old < young
    kept = kept_epochs(sender.state, Retention(1, readers_ms=1, slack=0), young, {EDGE: 8})
    assert kept >= {5, 6, 7, 8}
    assert not kept & {2, 3, 4}
