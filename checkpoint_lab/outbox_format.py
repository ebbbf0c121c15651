"""A driver of a query with `format("outbox")`: the tasks stage the rows before the shipped protocol is called.

Spark may call for each batch another Python process. Two processes take turns here, each with a protocol, a handle of the
log and publishers of its own. One that ended is replaced by a new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from checkpoint_lab.outbox_driver import TABLES, OutboxDriver
from checkpoint_lab.outbox_store import OutboxStore, SparkCheckpoint
from checkpoint_lab.outbox_world import OutboxWorld
from checkpoint_lab.spark_driver import QueryDied, Sweeper
from checkpoint_lab.violations import ensure
from checkpoint_lab.world import Choice
from spark_ckpt.epochs.records import StagedFileRecord
from spark_ckpt.errors import CkptError, Fenced
from spark_ckpt.outbox.protocol import Answer, Begin, Commit, OutboxProtocol, RunPlan, Staged
from spark_ckpt.store.epoch_log import EpochLog


@dataclass(frozen=True, slots=True)
class LookAhead:
    """Step before the tasks: read the newest incarnation, which names the files."""


@dataclass(frozen=True, slots=True)
class StageBatch:
    """Step of the tasks: run the plan and stage its rows."""


@dataclass(frozen=True, slots=True)
class CommitMessages:
    """Step to the call: Spark hands over the messages of the tasks."""


@dataclass
class CommittingProcess:
    """A process that commits. `hosted`: the incarnation that it has begun last; 0 for none."""

    protocol: OutboxProtocol
    log: EpochLog
    sweeper: Sweeper
    sessions: dict[str, int] = field(default_factory=dict)
    hosted: int = 0


class FormatDriver(OutboxDriver):
    """One run of the query.

    - `known`: newest incarnation before the tasks of the batch.
    - `ahead`: step before the call; None within it. `messages`: files that the tasks have reported.
    - `elsewhere`: the other process; None if there is none. `moves_left`: changes of the process.
    """

    known = 0
    ahead: LookAhead | StageBatch | CommitMessages | None = None
    elsewhere: CommittingProcess | None = None
    hosted = moves_left = 0

    def run_name(self, store: OutboxStore) -> str:
        """Return a name that no other run has."""
        store.attempts += 1
        self.messages: Mapping[str, list[StagedFileRecord]] = {}
        return f"run {store.attempts}"

    @property
    def idle(self) -> bool:
        """True between two batches."""
        return super().idle and self.ahead is None

    # -- next steps ---------------------------------------------------------------------------------------------------

    def work(self, number: int, rows: int) -> list[Choice]:
        """Return the next steps."""
        if self.ahead is None:
            found = super().work(number, rows)
            if self.moves_left and self.idle and self.begun and any(each[0] == "plan" for each in found):
                found += [("move", number, where) for where in ("the other", "a new")]
            return found
        # a driver that should not run may be slow where the program is not
        found = [("ahead" if self.role == "program" else "late", number, "ok")]
        found += [("sweep", number)] if self.sweeper.busy else []
        return [*found, *([("acks", number)] if self.acks is not None else [])]

    def faults(self, number: int) -> list[Choice]:
        """Return refusals and lost answers of the next step."""
        if self.ahead is not None:
            return [("ahead", number, "fail")] if self.ahead == StageBatch() else []
        return [] if isinstance(self.effect, RunPlan) else super().faults(number)

    def start_batch(self) -> None:
        """Let Spark run the plan of the batch. The call comes after it."""
        self.ahead = LookAhead()

    def step_ahead(self, how: str) -> None:
        """Perform the next step before the call."""
        if isinstance(self.ahead, LookAhead):
            self.known, self.ahead = self.newest_incarnation(), StageBatch()
        elif isinstance(self.ahead, StageBatch):
            self._stage(how)
        else:
            self.ahead = None
            # the log would fence the older process of this run as a replaced driver
            if self.is_stale():
                self.move("a new")
            super().start_batch()

    def newest_incarnation(self) -> int:
        """Return the newest incarnation of the log."""
        # with a handle of its own: Spark prepares the tasks in another process than the one that commits
        return self.store.log().state().incarnation

    def recover(self) -> None:
        """Do nothing: Spark calls this host for batches only."""

    def _stage(self, how: str) -> None:
        self.ahead = CommitMessages()
        effect = RunPlan(self.at, self.known)
        if how == "fail":
            self._staged(effect, [])
            self.end(QueryDied("a task failed"))
        else:
            self.messages = self._staged(effect, self.checkpoint.run(self.at))

    def is_stale(self) -> bool:
        """Return True if another process has begun since this one did."""
        return self.hosted not in (0, self.known)

    def _run_plan(self, effect: RunPlan, how: str) -> Staged:
        # the tasks are done: a batch that is decided already leaves their files as orphans
        self.actions += 1
        self.store.attempts += 1
        return Staged(
            self.messages if effect.stages else {}, f"attempt {self.store.attempts}", 1, 1, self.known_of_messages()
        )

    def known_of_messages(self) -> int:
        """Return the incarnation that the messages name."""
        return self.known

    def _begin(self, effect: Begin, how: str) -> Answer:
        answer = super()._begin(effect, how)
        if self.point is not None and self.begins is None:
            self.hosted = self.point.incarnation
        return answer

    # -- processes ----------------------------------------------------------------------------------------------------

    def move(self, where: str) -> None:
        """Continue in the other process, or in a new one if there is none, or if this one has ended."""
        here = CommittingProcess(self.protocol, self.log, self.sweeper, self.sessions, self.hosted)
        there = self.elsewhere if where == "the other" else None
        if where == "the other":
            self.elsewhere = here
        if there is None:
            log = self.store.log()
            there = CommittingProcess(self.protocol_of(), log, Sweeper(self.store, log, every=TABLES))
        self.protocol, self.log, self.sweeper = there.protocol, there.log, there.sweeper
        self.sessions, self.hosted = there.sessions, there.hosted

    def end(self, error: CkptError) -> None:
        """End the query. O10: no run is ended by its own other process, nor by arguments that it has used up."""
        holder = self.store.look().state().holder
        if holder is not None and holder.name == self.run:
            used_up = self.begun and "take restore= out" in error.hint
            ensure(not used_up, "O10", f"a run that has begun is refused for its arguments: {error}")
            fenced = isinstance(error, Fenced) and isinstance(self.effect, Commit)
            ensure(not fenced, "O10", f"a run has fenced itself: {error}")
        self.abort()
        super().end(error)

    def abort(self) -> None:
        """Do nothing: the log may have the files, although the commit was not answered."""


class FormatWorld(OutboxWorld):
    """A query with `format("outbox")`, its drivers and its operator."""

    HOST = FormatDriver
    LAGGARDS = (*OutboxWorld.LAGGARDS, "ahead", "ahead", "late", "late")
    moves = 0
    """Changes of the process in each run."""
    FLEETING = OutboxWorld.FLEETING - {"runplan fail"} | {"ahead fail"}

    def fault_of(self, choice: Choice) -> str:
        """Return the kind of a fault."""
        return f"ahead {choice[-1]}" if choice[0] == "ahead" else super().fault_of(choice)

    def _started(self, checkpoint: SparkCheckpoint, role: str) -> OutboxDriver:
        driver = super()._started(checkpoint, role)
        assert isinstance(driver, FormatDriver)  # noqa: S101 - this world has no other
        driver.moves_left = self.moves
        return driver

    def _do_ahead(self, number: int, how: str) -> None:
        driver = self.drivers[number]
        assert isinstance(driver, FormatDriver)  # noqa: S101 - this world has no other
        driver.step_ahead(how)

    def _do_late(self, number: int, how: str) -> None:
        self._do_ahead(number, how)

    def _do_move(self, number: int, where: str) -> None:
        """Let another process of the same run commit the next batch."""
        driver = self.drivers[number]
        assert isinstance(driver, FormatDriver)  # noqa: S101 - this world has no other
        self.counter["move"] += 1
        driver.moves_left -= 1
        self.tell("driver", "recover", f"continues in {where} process")
        driver.move(where)
