"""G4: a message of an earlier incarnation is valid iff no later recovery has undone its send."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from checkpoint_protocols.ids import Epoch, Incarnation, ProcessId
from checkpoint_protocols.incarnation import Age, Line, RollbackTable, age
from checkpoint_protocols.machine import ProtocolViolation

A, B = ProcessId("a"), ProcessId("b")


def row(number: int, line: int | dict[ProcessId, int]) -> dict[Incarnation, Line]:
    return {Incarnation(number): line}  # type: ignore[dict-item]


def judge(source: ProcessId, sent_in: int, index: int, now: int, table: RollbackTable) -> Age:
    return age(source, Incarnation(sent_in), Epoch(index), Incarnation(now), table)


def newest_row_only(source: ProcessId, sent_in: int, index: int, now: int, table: RollbackTable) -> Age:
    """The literal rule: compare with the current incarnation's row only."""
    if sent_in >= now:
        return judge(source, sent_in, index, now, table)
    return judge(source, now - 1, index, now, table)


def drop_all_older(source: ProcessId, sent_in: int, index: int, now: int, table: RollbackTable) -> Age:
    """The naive rule: every older message is undone."""
    return Age.UNDONE if sent_in < now else judge(source, sent_in, index, now, table)


@pytest.mark.parametrize(
    ("sent_in", "index", "expected"),
    [(2, 9, Age.CURRENT), (3, 0, Age.NEWER), (1, 4, Age.DELAYED), (1, 5, Age.UNDONE)],
)
def test_one_recovery_splits_the_older_messages_at_its_line(sent_in: int, index: int, expected: Age) -> None:
    assert judge(A, sent_in, index, 2, row(2, 5)) is expected


def test_a_vector_line_undoes_only_the_processes_it_names() -> None:
    table = row(2, {A: 5})

    assert judge(A, 1, 5, 2, table) is Age.UNDONE
    assert judge(A, 1, 4, 2, table) is Age.DELAYED
    assert judge(B, 1, 5, 2, table) is Age.DELAYED


def test_t14_a_doubly_stale_message_is_dropped_and_the_literal_rule_takes_it() -> None:
    """Sent at index 4. The first recovery undid indices from 3, the second only from 6."""
    table = row(2, 3) | row(3, 6)

    assert judge(A, 1, 4, 3, table) is Age.UNDONE
    assert newest_row_only(A, 1, 4, 3, table) is Age.DELAYED


def test_a_missing_row_is_an_error() -> None:
    with pytest.raises(ProtocolViolation, match="row of incarnation 2"):
        judge(A, 1, 4, 3, row(3, 6))


@dataclass
class Sender:
    """Ground truth: one process that sends, checkpoints and rolls back, and records its undone messages."""

    incarnation: int = 1
    index: int = 0
    sent: list[tuple[int, int]] = field(default_factory=list)
    undone: set[int] = field(default_factory=set)
    table: dict[Incarnation, Line] = field(default_factory=dict)

    def send(self) -> None:
        self.sent.append((self.incarnation, self.index))

    def recover(self, line: int) -> None:
        self.incarnation += 1
        self.table |= row(self.incarnation, line)
        self.undone |= {number for number, (_, index) in enumerate(self.sent) if index >= line}
        self.index = min(self.index, line)


def history(seed: int) -> Sender:
    choose = random.Random(seed)
    sender = Sender()
    for _ in range(30):
        match choose.choice(["send", "send", "checkpoint", "recover"]):
            case "send":
                sender.send()
            case "checkpoint":
                sender.index += 1
            case _:
                sender.recover(choose.randint(max(0, sender.index - 2), sender.index + 1))
    return sender


def mistakes(rule: object) -> int:
    assert callable(rule)
    wrong = 0
    for sender in map(history, range(300)):
        for number, (sent_in, index) in enumerate(sender.sent):
            dropped = rule(A, sent_in, index, sender.incarnation, sender.table) is Age.UNDONE
            wrong += dropped != (number in sender.undone)
    return wrong


def test_the_full_table_agrees_with_ground_truth_over_many_recoveries() -> None:
    assert mistakes(judge) == 0


@pytest.mark.parametrize("rule", [newest_row_only, drop_all_older])
def test_the_shorter_rules_disagree_with_ground_truth(rule: object) -> None:
    assert mistakes(rule) > 0
