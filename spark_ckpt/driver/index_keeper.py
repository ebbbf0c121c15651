"""Host of `StageProcess` in the driver: keeps a program's index up with its senders and its clock.

The rules of `StageProcess` run on the coordinator's thread, so an index is never said between an epoch's commit and the
answer to it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from spark_ckpt.connector import Cursor
from spark_ckpt.coordination.messages import EpochRequested, EpochsReleased, Reason
from spark_ckpt.coordination.protocol import EpochProtocol
from spark_ckpt.coordination.stage_process import (
    Between,
    EpochServes,
    LogsRead,
    ReleaseEpochs,
    SayIndex,
    StageProcess,
    TakeEpoch,
)
from spark_ckpt.driver.answering import NoAnswer, answer_within
from spark_ckpt.driver.coordinator import CoordinatorLoop, Rules
from spark_ckpt.driver.job_plan import JobPlan
from spark_ckpt.errors import CkptError, Fenced, GraphInvalid
from spark_ckpt.program_edges.following import EdgeLog, position_of
from spark_ckpt.program_edges.sink import EdgeSink
from spark_ckpt.program_edges.source import EdgeSource

_log = logging.getLogger(__name__)
LOOK_S = 0.5


def check_index(plan: JobPlan) -> None:
    """Raise `GraphInvalid` if `protocol="index"` cannot promise lines for the job."""
    sources = [(node.name, node.source) for node in plan.sources if isinstance(node.source, EdgeSource)]
    if not sources and not any(isinstance(binding.sink, EdgeSink) for binding in plan.bindings):
        raise GraphInvalid(
            f"job '{plan.job}' has no edge to another program: protocol=\"index\" would promise nothing",
            hint="leave protocol out, or join the programs by ckpt.Edge; topics and tables carry no index",
        )
    if plan.between is Between.ALIGNED:
        _check_aligned(plan)
    for name, source in sources:
        # A stage of the same program has the same protocol, also before its first epoch.
        if not source.joins_stages and not source.sender_index():
            raise GraphInvalid(
                f"the sender of source '{name}' runs without protocol=\"index\": its rows have no stamp",
                source=name,
                sender=source.store,
                hint='start the sender with protocol="index" first, then this job',
            )


def _check_aligned(plan: JobPlan) -> None:
    """Raise `GraphInvalid` if the stage has read rows after a line of its senders that it does not serve."""
    log_state = plan.store.log.state()
    cursors = plan.store.log.manifest(log_state.latest).cursors if log_state.latest else {}
    for node in plan.sources:
        if not isinstance(node.source, EdgeSource) or node.name not in cursors:
            continue
        stamp = node.source.read_stamp(cursors[node.name])
        if stamp > log_state.index:
            raise GraphInvalid(
                f"'{plan.job}' has read rows after line-{stamp} without serving it: no later line of it would be aligned",
                source=node.name,
                hint='start all stages with protocol="unaligned"; after their next line start them with protocol="aligned"',
            )


def stage_process(plan: JobPlan) -> StageProcess:
    """Return the program's part in the protocol between programs, as its log has it."""
    every_ms, log_state = plan.config.line_interval_ms, plan.store.log.state()
    if not plan.between.indexed:
        return StageProcess(Between.INDEPENDENT, every_ms, log_state.latest)
    served = [(brief.epoch, brief.index) for brief in log_state.lineage()][::-1]
    reads = any(isinstance(node.source, EdgeSource) for node in plan.sources)
    # Before the first epoch: a program without an index so far may have read rows of every line up to these.
    stamps = [node.source.sender_stamp() for node in plan.sources if isinstance(node.source, EdgeSource)]
    heard = max(log_state.stamp, *stamps, 0)
    return StageProcess(plan.between, every_ms, log_state.latest, log_state.index, reads, served, heard)


@dataclass(frozen=True, slots=True)
class _Facts:
    """Facts of other logs.

    `stamp`, `reached`, `arriving`: as in `LogsRead`. `served`: the newest index of each stage, or of this program and its
    senders; empty if a log cannot be read now.
    """

    stamp: int
    reached: int
    arriving: int
    served: Mapping[str, int]


class IndexKeeper(threading.Thread):
    """Reads the senders' indices and asks for epochs of one incarnation.

    `stage`: its answers to `LogsRead` are carried out. `announce`: receives the newest index of each program when
    one has changed. `failed`: receives `Fenced`, and an unexpected error, which ends the thread.
    """

    def __init__(
        self,
        plan: JobPlan,
        incarnation: int,
        stage: Rules,
        protocol: EpochProtocol,
        loop: CoordinatorLoop,
        announce: Callable[[Mapping[str, int], int | None], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        super().__init__(name="ckpt-index", daemon=True)
        self._plan = plan
        self._incarnation = incarnation
        self._stage = stage
        self._protocol = protocol
        self._loop = loop
        self._announce = announce
        self._failed = failed
        self._sources = {node.name: node.source for node in plan.sources if isinstance(node.source, EdgeSource)}
        self._followed: dict[str, EdgeLog] = {}
        """The senders' logs. A log that stays open reads only what is new."""
        self._waits_for_inputs = plan.between is Between.ALIGNED and bool(self._sources)
        stores = plan.stage_stores or (plan.store,)
        # Handles of this thread: the run's own is locked while an epoch is committed.
        self._logs = {store.job: store.reopened().log for store in stores}
        self._released = 0 if plan.between.decides_lines else None
        self._announced: tuple[Mapping[str, int], int | None] | None = None
        self._committed: Mapping[str, Cursor] = protocol.cut.base.cursors
        self._arrived: Mapping[str, Cursor] = protocol.cut.base.cursors
        self._is_over = False
        self._wake = threading.Event()

    def run(self) -> None:
        """Look until `close`."""
        while True:
            self._wake.wait(LOOK_S)
            self._wake.clear()
            if self._is_over:
                return
            try:
                facts = self._facts()
            except Exception as error:  # noqa: BLE001 - without this thread no line would be served, and no log would say so
                self._failed(error)
                return
            # The logs are read here, where a slow store holds up no barrier. The rules see the result on the coordinator's
            # thread.
            self._loop.post(partial(self._look, facts))

    def positions_moved(self) -> None:
        """Look at once if the stage waits for its inputs: it lets in no row of the next line before it has said this one."""
        if self._waits_for_inputs:
            self._wake.set()

    def close(self) -> None:
        """End after the look in progress."""
        self._is_over = True
        self._wake.set()

    def _facts(self) -> _Facts:
        """Read the logs of others, on this thread."""
        stamp = 0
        for name in self._sources:
            # A sender that cannot be read now fails the query, or is back at the next look.
            with suppress(CkptError):
                stamp = max(stamp, self.log_of(name).stamp())
        reached = arriving = 0
        if self._waits_for_inputs:
            reached, arriving = self._reached(self._committed), self._reached(self._arrived)
        return _Facts(stamp, reached, arriving, self._indices())

    def _reached(self, cursors: Mapping[str, Cursor]) -> int:
        try:
            return min(self.log_of(name).reached(position_of(cursors[name])) for name in self._sources)
        # A log that cannot be read only delays a line: 0 serves none.
        except (CkptError, KeyError):
            return 0

    def log_of(self, name: str) -> EdgeLog:
        """Return the log of an edge, opened once."""
        if name not in self._followed:
            self._followed[name] = self._sources[name].open_log()
        return self._followed[name]

    def _indices(self) -> dict[str, int]:
        """Return the newest index of each program; none if a log cannot be read now."""
        try:
            served = {name: log.state().index for name, log in self._logs.items()}
            # The log of a sender that is a stage has been read already.
            senders = (source for source in self._sources.values() if not source.joins_stages)
            return served | dict(source.sender_line() for source in senders)
        except CkptError:
            return {}

    def _look(self, facts: _Facts) -> None:
        """Ask for an epoch, say an index, release epochs; on the coordinator's thread."""
        before = self._committed, self._arrived
        self._committed, self._arrived = self._protocol.cut.base.cursors, dict(self._protocol.cut.cursors)
        if before != (self._committed, self._arrived):
            self.positions_moved()  # the facts were those of the positions before
        # All or none: a line of some stages would be decided without the others.
        stages = tuple(facts.served[name] for name in self._logs) if facts.served else ()
        idle, under_way = self._protocol.cut.is_idle, self._protocol.open_epoch is not None
        read = LogsRead(facts.stamp, stages, facts.reached, facts.arriving, idle, under_way)
        for effect in self._stage.handle(read, self._plan.store.log.now_ms()):
            match effect:
                case ReleaseEpochs(epoch=epoch):
                    self._released = epoch
                    self._loop.handle(EpochsReleased(epoch))
                case TakeEpoch():
                    self._loop.handle(EpochRequested(Reason.INTERVAL))
                case SayIndex(epoch=epoch, index=index):
                    self._say(epoch, index)
        if facts.served and (facts.served, self._released) != self._announced:
            self._announced = facts.served, self._released
            self._announce(facts.served, self._released)

    def _say(self, epoch: int, index: int) -> None:
        log = self._plan.store.log
        try:
            # Bounded, as a commit is: this runs on the coordinator's thread.
            answer_within(self._plan.config.timeout_ms / 1000, partial(log.say_index, self._incarnation, epoch, index))
            self._stage.handle(EpochServes(epoch, log.state().index), log.now_ms())
        except Fenced as error:
            self._failed(error)
        except (CkptError, NoAnswer) as error:
            # The next look says it again.
            _log.info("job=%s index %d is not in the log yet: %s", self._plan.job, index, error)
