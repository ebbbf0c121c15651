"""Bugs planted in `StageProcess`, in the rules of its log, in the line search, and in their host.

Each names the verdict that finds it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from checkpoint_lab.stages_world import StageRules
from checkpoint_lab.violations import (
    Incomplete,
    Lost,
    NoEnd,
    Orphan,
    ReusedId,
    ShownTwice,
    StaleDelivery,
    TooEarly,
    Violation,
    WrongEffect,
)
from spark_ckpt.coordination.stage_process import Between, SayIndex, StageProcess, TakeEpoch
from spark_ckpt.epochs import lines, readers
from spark_ckpt.store import proposals


@dataclass(frozen=True)
class Planted:
    name: str
    verdict: type[Violation]
    rules: StageRules


def of_stage(name: str, verdict: type[Violation], **methods: Callable[..., object]) -> Planted:
    """A `StageProcess` with other methods."""
    return Planted(name, verdict, StageRules(stage=type("Wrong", (StageProcess,), methods)))


def proposed(log_state, manifest, now_ms, index=0, *, change):
    """The row of an epoch, with a changed brief."""
    row = proposals.epoch(log_state, manifest, now_ms, index)
    brief = proposals.EpochBrief.model_validate_json(row.brief)
    return replace(row, brief=brief.model_copy(update=change(log_state, brief)).model_dump_json())


def of_epoch(name: str, verdict: type[Violation], change: Callable[..., dict[str, int]]) -> Planted:
    """An epoch's row with other indices."""
    return Planted(name, verdict, StageRules(epoch=lambda *given: proposed(*given, change=change)))


def asks_although_it_is_idle(self, now_ms, idle, *inputs):
    found = StageProcess.wanted(self, now_ms, idle, *inputs)
    return TakeEpoch(found.index) if isinstance(found, SayIndex) and idle else found


def said_of_any_epoch(log_state, by, named, index):
    """A row is appended although a newer epoch exists."""
    earlier = next((brief for brief in log_state.lineage() if brief.epoch < log_state.latest), None)
    epoch = earlier.epoch if earlier is not None else named
    return proposals.row_of(proposals.IndexSaid(incarnation=by, epoch=epoch, index=index), by, epoch)


def newest_serving(self, number):
    return next((each for each in reversed(self.epochs) if number <= each.index), None)


def named_with_the_newest(programs, number):
    epochs = {name: newest_serving(program, number) for name, program in programs.items()}
    if any(each is None for each in epochs.values()):
        raise lines.EpochNotFound("not complete")
    return lines.Line({name: each.epoch for name, each in epochs.items()}, number)


def named_without_those_that_lack_it(programs, number):
    epochs = {name: program.serving(number) or program.epochs[-1] for name, program in programs.items()}
    return lines.Line({name: each.epoch for name, each in epochs.items()}, number)


def named_without_the_search(programs, number):
    """Skips the search for undone rows."""
    epochs = {name: program.serving(number) for name, program in programs.items()}
    if any(each is None for each in epochs.values()):
        raise lines.EpochNotFound("not complete")
    return lines.Line({name: each.epoch for name, each in epochs.items()}, number)


def unread_of_every_branch(log_state, edge, position):
    first = position.epoch + 1
    return [brief for brief in log_state.epochs if brief.epoch >= first and edge in brief.sinks]


def unread_with_the_newest_again(log_state, edge, position):
    return readers.unread(log_state, edge, position.model_copy(update={"files": 0, "of": 1}))


def unread_without_the_next(log_state, edge, position):
    found = readers.unread(log_state, edge, position)
    return found[1:] if len(found) > 1 else found


def driver_before_the_commit(node):
    """The planner reads the driver's index, which is raised when the epoch is requested, before its commit."""
    if node.stage is None or node.protocol is Between.INDEPENDENT:
        return None
    asked = node.log.index + 8 if node.requested == "index" else node.log.index
    return StageProcess(Between.INDEX, 1000, node.log.latest, asked)


def published_with_the_newest_of_the_line(self):
    """The newest epoch that serves the decided line, not the first one."""
    if not self.protocol.decides_lines:
        return self.epoch
    return max((epoch for epoch, index in self.served.items() if self.decided and index >= self.decided), default=0)


def published_when_committed(self):
    """Publishes committed epochs without a decided line."""
    return self.epoch


def aligned_by_what_has_arrived(self, reached, arriving):
    return StageProcess.align(self, arriving, arriving)


def aligned_by_the_clock(self, now_ms):
    """An aligned reader takes epochs as the index protocol does."""
    return max(self.index, StageProcess.next_index(self, now_ms)) if self.protocol is not Between.INDEPENDENT else 0


def reached_up_to_an_epoch_without_rows(log_state, edge, position, has_rows):
    """The position never passes the epoch, and later rows are never read."""
    return readers.reached_index(log_state, edge, position, lambda brief: True)


def reached_by_the_stamp_of_the_sender(log_state, edge, position, has_rows):
    """Ignores unread segments."""
    return log_state.index


PLANTED = (
    of_stage("every segment comes in", Orphan, lets_in=lambda self, stamp: True),
    of_stage("the gate is too far open", Orphan, lets_in=lambda self, stamp: stamp <= self.index + 8),
    of_stage("a segment of the own index waits", Lost, lets_in=lambda self, stamp: not stamp or stamp < self.index),
    of_stage("nobody listens to senders", NoEnd, heard=lambda self, index: None),
    of_stage("an idle program takes epochs for its index", WrongEffect, wanted=asks_although_it_is_idle),
    of_stage(
        "a forced epoch has the index of the clock", NoEnd, next_index=lambda self, now_ms: max(now_ms // 2000 * 2, 1)
    ),
    of_epoch(
        "who joins late serves the lines of before",
        Orphan,
        lambda log, brief: {"after": log.stamp} if brief.index and log.latest and not log.index else {},
    ),
    of_stage("sinks publish the epoch under way", TooEarly, publishes_up_to=property(lambda self: self.epoch + 1)),
    Planted(
        "rows of a time without an index have no stamp",
        Orphan,
        StageRules(
            epoch=lambda *given: proposed(*given, change=lambda log, brief: {} if brief.index else {"after": 0})
        ),
    ),
    of_epoch("segments have no stamp", Orphan, lambda log_state, brief: {"after": 0}),
    of_epoch(
        "a segment has the stamp of an older line", Orphan, lambda log_state, brief: {"after": max(0, brief.after - 8)}
    ),
    of_epoch(
        "the index follows a clock that goes back",
        ReusedId,
        lambda log_state, brief: {"index": max(1, brief.index - 6)} if brief.index > 6 and brief.epoch % 2 else {},
    ),
    Planted("an index is said for an older epoch", Orphan, StageRules(said=said_of_any_epoch)),
    Planted("a line takes the newest epoch of an index", Orphan, StageRules(named=named_with_the_newest)),
    Planted("a line leaves out who lacks it", Incomplete, StageRules(named=named_without_those_that_lack_it)),
    Planted("a line does not look for undone rows", Orphan, StageRules(named=named_without_the_search)),
    Planted("a reader follows numbers, not the lineage", StaleDelivery, StageRules(unread=unread_of_every_branch)),
    Planted("a segment is read again", ShownTwice, StageRules(unread=unread_with_the_newest_again)),
    Planted("a segment is passed over", Lost, StageRules(unread=unread_without_the_next)),
    Planted("the gate opens before the epoch is committed", Orphan, StageRules(gate=driver_before_the_commit)),
    Planted(
        "an epoch has the cursor of its commit, not of its barrier",
        Lost,
        StageRules(cut=lambda node: replace(node.at_barrier, positions=node.now.positions)),
    ),
    of_stage("sinks publish what is committed", TooEarly, publishes_up_to=property(published_when_committed)),
    of_stage(
        "sinks publish the newest epoch of a line",
        TooEarly,
        publishes_up_to=property(published_with_the_newest_of_the_line),
    ),
    of_stage("nobody hears of a decision", NoEnd, decide=lambda self, indices: None),
    Planted("one stage decides a line", TooEarly, StageRules(decision=lambda indices: [max(indices)])),
    of_stage("an aligned stage says its index of rows under way", Incomplete, align=aligned_by_what_has_arrived),
    of_stage("an aligned stage follows its clock", Incomplete, index_of_epoch=aligned_by_the_clock),
    of_stage(
        "an aligned stage waits for nothing",
        Incomplete,
        align=lambda self, *_: StageProcess.align(self, 10**9, 0),
    ),
    Planted("one aligned input is enough", Incomplete, StageRules(of_inputs=max)),
    Planted("an epoch without rows is waited for", NoEnd, StageRules(reached=reached_up_to_an_epoch_without_rows)),
    Planted("rows on the way count as read", Incomplete, StageRules(reached=reached_by_the_stamp_of_the_sender)),
)

SEEDS = {
    "every segment comes in": 8,
    "the gate is too far open": 8,
    "a segment of the own index waits": 6,
    "nobody listens to senders": 3,
    "an idle program takes epochs for its index": 0,
    "a forced epoch has the index of the clock": 5,
    "who joins late serves the lines of before": 165,
    "sinks publish the epoch under way": 0,
    "rows of a time without an index have no stamp": 312,
    "segments have no stamp": 0,
    "a segment has the stamp of an older line": 4,
    "the index follows a clock that goes back": 1,
    "an index is said for an older epoch": 2,
    "a line takes the newest epoch of an index": 13,
    "a line leaves out who lacks it": 0,
    "a line does not look for undone rows": 111,
    "a reader follows numbers, not the lineage": 0,
    "a segment is read again": 0,
    "a segment is passed over": 8,
    "the gate opens before the epoch is committed": 178,
    "an epoch has the cursor of its commit, not of its barrier": 142,
    "sinks publish what is committed": 111,
    "sinks publish the newest epoch of a line": 111,
    "nobody hears of a decision": 165,
    "one stage decides a line": 165,
    "an aligned stage says its index of rows under way": 96,
    "an aligned stage follows its clock": 88,
    "an aligned stage waits for nothing": 86,
    "one aligned input is enough": 86,
    "an epoch without rows is waited for": 111,
    "rows on the way count as read": 88,
}
"""A short schedule that condemns the bug, tried first."""
CATCHERS = (*dict.fromkeys(SEEDS.values()),)
