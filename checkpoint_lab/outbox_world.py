"""The world of a plain query with an outbox: the shipped protocol, rule and log, under Spark's contract of `foreachBatch`.

- Drivers die between any two effects and inside them. Several run at once on one checkpoint.
- Operators rewind, delete, edit and copy the checkpoint, restore an older store, start another query on the outbox.
- Of a refusal the operator knows the error only: it has to name a next step, and that step has to work.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from checkpoint_lab.outbox_driver import OutboxDriver, ProtocolOf
from checkpoint_lab.outbox_store import SINKS, OutboxSink, OutboxStore, PlannedOffsets, SparkCheckpoint, state_at
from checkpoint_lab.spark_driver import QueryDied
from checkpoint_lab.spark_store import Backup
from checkpoint_lab.violations import ensure
from checkpoint_lab.world import Choice, World
from spark_ckpt.errors import (
    BatchUnexpected,
    CkptError,
    EpochNotFound,
    Fenced,
    PublishConflict,
    PublishFailed,
    QueryForeign,
    StoreInUse,
    StoreOutage,
)
from spark_ckpt.outbox.protocol import OutboxProtocol
from spark_ckpt.outbox.rule import NO_CHANGES, Accepted, judge

ROWS, FAULTS, DRIVERS_MAX, EMPTY = 9, 14, 3, 2
"""Rows of the input, faults, drivers at once, batches without rows."""
OBEYED_MAX = 8
"""Maximal number of followed steps without a decided batch: an operator must not go round in circles."""
_RESTORE = re.compile(r"restore=(\d+)")
_TO_BATCH = re.compile(r"rewind the query to batch (\d+)")
_BRANCH = re.compile(r"before a start with restore=(\d+), rewind the query to (?:batch (\d+)|its beginning)")
_TO_BATCHES = re.compile(r"still has, (\d+) to (\d+)")
_ACCEPTED = re.compile(r"accept-loss STORE --epoch (\d+) --incarnation (\d+)")
PASSING = (Fenced, PublishFailed, StoreInUse, StoreOutage, QueryDied)
"""Errors after which Spark's supervisor starts the query again."""
TROUBLES = ("rewind", "name", "delete", "edit", "copy", "stranger", "back up", "lose", "expire", "usurp", "crash")


class OutboxWorld(World):
    """A plain query, its drivers and its operator.

    - `protocol_of`: the protocol of a new run.
    - `troubles`: kinds of trouble in addition to failed steps; None for all.
    """

    HOST: type[OutboxDriver] = OutboxDriver

    LAGGARDS: tuple[str, ...] = ("", "step", "publish", "open", "commit", "plan", "acks", "sweep")
    FLEETING = frozenset(
        {
            f"{kind} {how}"
            for kind in ("begin", "commit", "appendacks", "publish")
            for how in ("fail", "silent", "again")
        }
        | {"runplan fail", "publish late", "arrive", "expire"}
    )

    def __init__(
        self, protocol_of: ProtocolOf = OutboxProtocol, troubles: tuple[str, ...] | None = None, times: int = 1
    ) -> None:
        self.protocol_of = protocol_of
        self.troubles = TROUBLES if troubles is None else troubles
        self.rows, self.stretch = ROWS * times, times
        self.store = OutboxStore()
        self.sinks = {sink: OutboxSink(sink) for sink in SINKS}
        self.made = 1
        """Number of query ids that were made."""
        self.checkpoint = SparkCheckpoint("q1")
        self.shelf: list[SparkCheckpoint] = []
        """Checkpoints that an operator can bring back, the newest last: earlier ones, and copies that ran elsewhere."""
        self.settled = True
        """True if Spark has committed a batch of the program since an operator replaced its checkpoint."""
        self.program: OutboxDriver | None = None
        self.drivers: list[OutboxDriver] = []
        self.accepted = NO_CHANGES
        """Arguments of the program's start. They stay in the program until an operator removes them."""
        self.error: CkptError | None = None
        """The error that the operator has to act on."""
        self.obeyed = 0
        self.named: tuple[int, int] | None = None
        """Age of the store when the operator took a step that has to be enough; None after another trouble."""
        self.backup: Backup | None = None
        self.newer: Backup | None = None
        """The log before an older backup replaced it; None once a batch was decided since."""
        self.faults_left, self.empty_left = FAULTS * times, EMPTY * times
        self.counter: Counter[str] = Counter()

    # -- what can happen ----------------------------------------------------------------------------------------------

    def choices(self) -> list[Choice]:
        """Return all choices except faults."""
        found = [choice for number, driver in enumerate(self.drivers) for choice in driver.work(number, self.rows)]
        if self.error is not None:
            return [*found, *self._ways(self.error)]
        if self.program is None:
            return [*found, ("start",)]
        if self.accepted != NO_CHANGES and self.program.begun:
            found.append(("tidy",))
        return found

    def timers(self) -> list[Choice]:
        """Return nothing: no step waits for time."""
        return []

    def faults(self) -> list[Choice]:
        """Return deaths, second drivers, refusals, lost answers, and everything that operators do without need."""
        if not self.faults_left:
            return []
        found: list[Choice] = [("crash", number) for number in range(len(self.drivers))]
        if self.program is not None and len(self.drivers) < DRIVERS_MAX:
            found.append(("usurp",))
        for number, driver in enumerate(self.drivers):
            found += driver.faults(number)
            if self.empty_left and driver.idle and not driver.reruns:
                found.append(("empty", number))
        found += [("arrive", name) for name, sink in self.sinks.items() if sink.late is not None]
        if self.error is None and self.store.by_number:
            found += self._operations()
        return [each for each in found if each[0] not in TROUBLES or each[0] in self.troubles]

    def _operations(self) -> list[Choice]:
        here = self.checkpoint
        found: list[Choice] = [("rewind", batch) for batch in (-1, *sorted(here.commits))]
        batches = {here.batch(number): number for number in here.commits} if "name" in self.troubles else {}
        found += [("name", each.epoch) for each in self.store.look().state().epochs if each.spark_batch in batches]
        if self.settled and here.newest >= 0:
            found += [("delete",), ("copy",)]
            # the last place: by how many rows the batch grows; with 0 only its time of planning changes
            found += [("edit", here.newest, 0)]
            if here.newest in here.commits:
                found += [("edit", each, 0) for each in (here.newest - 1,) if each >= 0]
            elif here.offsets[here.newest].end > here.start_of(here.newest):
                found.append(("edit", here.newest, -1))
        if len(self.drivers) < DRIVERS_MAX:
            found.append(("stranger",))
        found.append(("back up",))
        if self.backup is not None and self.newer is None:
            found.append(("lose",))
        if (
            self.program is not None
            and self.program.calls
            and all(each.idle and not each.broken for each in self.drivers)
        ):
            # every sink's first acknowledgement is in the log: before that, no rule can help
            found += [("expire", name) for name, sink in self.sinks.items() if sink.marker is not None]
        return found

    def fault_of(self, choice: Choice) -> str:
        """Return the kind of a fault, with the effect that fails and the way in which it fails."""
        if choice[0] == "behind":
            return f"appendacks {choice[-1]}"
        if choice[0] == "step" and isinstance(choice[1], int):
            return f"{type(self.drivers[choice[1]].effect).__name__.lower()} {choice[-1]}"
        return f"publish {choice[-1]}" if choice[0] == "publish" else str(choice[0])

    def _ways(self, error: CkptError) -> list[Choice]:
        """Return the steps that the error names. O10: there is one."""
        # by the words of the error, since the operator knows nothing else
        hint, found = error.hint, list[Choice]()
        if "take restore= out" in hint or "continue where the job stopped" in hint or isinstance(error, EpochNotFound):
            return [("take out",)]
        if "bring back the checkpoint" in hint or "bring it back" in hint:
            found += [("bring back",)] if any(map(self._continues, self.shelf)) else []
        if "accept_query=" in hint and not self._is_behind():
            found.append(("accept query",))
        if "newer backup" in hint and self.newer is not None:
            found.append(("newer backup",))
        if "accept-loss" in hint:
            # without a rollback, a sink cannot say whether it has the epochs that the older log calls unpublished
            log_state = self.store.look().state()
            sure = not any(log_state.unsettled(sink) for sink in SINKS)
            found += [("accept loss", back) for back in ((True, False) if sure else (True,))]
        if isinstance(error, PublishConflict) and any(sink.forgotten for sink in self.sinks.values()):
            found.append(("declare",))
        if isinstance(error, PublishConflict):
            # -1 is the query's beginning
            found += [("branch", int(epoch), int(batch or -1)) for epoch, batch in _BRANCH.findall(hint)]
        if isinstance(error, BatchUnexpected | QueryForeign):
            found += [("restore", int(each)) for each in _RESTORE.findall(hint)]
            to = [int(each) for each in _TO_BATCH.findall(hint)]
            for oldest, newest in _TO_BATCHES.findall(hint):
                to += range(int(oldest), int(newest) + 1)
            found += [("go back", batch) for batch in to if batch in self._agreed()]
        ensure(bool(found), "O10", f"no next step is named: {error}")
        return found

    def _agreed(self) -> set[int]:
        """Return the committed batches whose offsets are those that the outbox has on its branch."""
        here, log_state = self.checkpoint, self.store.look().state()
        known = {each.spark_batch for each in log_state.lineage()}
        return {number for number in here.commits if here.batch(number) in known}

    def _is_behind(self) -> bool:
        # on a log that has lost epochs no query is confirmed: first the log is made whole, or its loss accepted
        return self.newer is not None

    # -- making it happen ---------------------------------------------------------------------------------------------

    def do(self, choice: Choice) -> None:
        """Perform the choice: call the method of its kind."""
        if choice[0] in _FAULTS or choice[-1] in ("fail", "silent", "again", "late"):
            self.faults_left -= 1
            self.counter[self.fault_of(choice)] += 1
            # after another trouble, the step that an error named need not be enough any more
            self.obeyed, self.named = 0, None
        self.act(choice)
        self._collect()

    def _do_start(self) -> None:
        self.program = self._started(self.checkpoint, "program")

    def _started(self, checkpoint: SparkCheckpoint, role: str) -> OutboxDriver:
        accepted = self.accepted if role == "program" else NO_CHANGES
        driver = self.HOST(self.store, self.sinks, checkpoint, self.protocol_of, accepted, role)
        self.drivers.append(driver)
        self.tell("driver", "recover", f"{role} starts, query {checkpoint.query}, batch {driver.at}")
        if accepted == NO_CHANGES and self.HOST is OutboxDriver:
            driver.recover()
        return driver

    def _do_plan(self, number: int, size: int, stamped: bool) -> None:
        self.drivers[number].plan(size, self.step if stamped else 0)
        self.tell("driver", "read", f"batch {self.drivers[number].at}: {size} rows")

    def _do_empty(self, number: int) -> None:
        self.empty_left -= 1
        self._do_plan(number, 0, True)

    def _do_step(self, number: int, how: str) -> None:
        driver, tip = self.drivers[number], self.store.tip
        name = type(driver.effect).__name__
        driver.step(how)
        # by the log and not by the answer: a commit without an answer is decided as well
        if self.store.tip > tip:
            self.obeyed, self.newer = 0, None
            self.counter["decided"] += 1
            self.tell("log", "complete", f"epoch {self.store.tip}: {how}")
        elif name in ("Begin", "TellBranch"):
            self.counter[name] += 1
            self.tell("driver", "decide", f"{name}: {how}")

    def _do_behind(self, number: int, how: str) -> None:
        self.drivers[number].step_behind(how)

    def _do_open(self, number: int, sink: str, _how: str) -> None:
        self.drivers[number].open(sink)

    def _do_publish(self, number: int, sink: str, how: str) -> None:
        effect = self.drivers[number].publishing
        assert effect is not None  # noqa: S101 - else the choice does not exist
        self.tell(sink, "publish", f"epoch {effect.epoch}: {how}")
        self.drivers[number].publish(sink, how)
        self.store.judge_shown(self.sinks[sink])

    def _do_arrive(self, sink: str) -> None:
        """Let a delayed commit reach the sink, which refuses it after a newer session."""
        self.tell(sink, "publish", "a commit that was under way arrives")
        self.sinks[sink].land()
        self.store.judge_shown(self.sinks[sink])

    def _do_commit(self, number: int) -> None:
        driver = self.drivers[number]
        driver.commit()
        if driver is self.program and not driver.ended:
            self.settled = True

    def _do_acks(self, number: int) -> None:
        self.counter["acks"] += 1
        self.drivers[number].record()

    def _do_sweep(self, number: int) -> None:
        if self.drivers[number].sweep():
            self.counter["swept"] += 1

    def _do_crash(self, number: int) -> None:
        self.tell("driver", "crash", self.drivers[number].role)
        self._remove(self.drivers[number])

    def _do_usurp(self) -> None:
        """Start the program again while it runs: the older driver continues as a zombie."""
        if self.program is not None:
            self.program.role = "zombie"
        self._do_start()

    def _do_tidy(self) -> None:
        self.accepted = NO_CHANGES

    # -- the operator's own ideas -------------------------------------------------------------------------------------

    def _do_rewind(self, batch: int) -> None:
        """Rewind the query as a correct tool does: offsets, commits and state."""
        self._replace(self.checkpoint.up_to(batch), f"rewound to batch {batch}")

    def _do_name(self, epoch: int) -> None:
        """Restore an epoch that no error names, and rewind the query to its batch."""
        batch = self.store.by_number[epoch].spark_batch
        assert batch is not None  # noqa: S101 - every epoch of an outbox has one
        self._replace(self.checkpoint.up_to(batch.number), f"rewound to batch {batch.number}, with restore={epoch}")
        self.error, self.accepted = None, Accepted(restore=epoch)

    def _do_delete(self) -> None:
        self.made += 1
        self._replace(SparkCheckpoint(f"q{self.made}"), "its checkpoint is deleted")

    def _do_edit(self, number: int, by: int) -> None:
        offsets = self.checkpoint.offsets[number]
        edited = offsets._replace(end=offsets.end + by, stamp=-self.step)
        self._replace(self.checkpoint.edited(number, edited), f"offsets of batch {number} are edited")

    def _replace(self, checkpoint: SparkCheckpoint, what: str) -> None:
        """Stop the program and put another checkpoint in the place of its own. Zombies keep what they have read."""
        self._stop()
        self._put(checkpoint)
        self.settled = False
        self.tell("operator", "failed", what)

    def _put(self, checkpoint: SparkCheckpoint) -> None:
        # drivers of the old folder find the new one at their path from now on (`at_its_path`)
        self.shelf.append(self.checkpoint)
        checkpoint.replaced, self.checkpoint.replaced, self.checkpoint = None, checkpoint, checkpoint

    def _stop(self) -> None:
        if self.program is not None:
            self.program.leave()
            self._remove(self.program)

    def _remove(self, driver: OutboxDriver) -> None:
        self.drivers.remove(driver)
        if driver is self.program:
            self.program = None

    def _do_copy(self) -> None:
        """Run a copy of the checkpoint elsewhere."""
        copy = self.checkpoint.up_to(self.checkpoint.newest)
        self.shelf.append(copy)
        self._started(copy, "copy")

    def _do_stranger(self) -> None:
        """Start another query on the outbox."""
        self.made += 1
        self._started(SparkCheckpoint(f"s{self.made}"), "stranger")

    def _do_back_up(self) -> None:
        self.backup = self.store.back_up()

    def _do_lose(self) -> None:
        """Replace the log by an older backup, with every driver stopped."""
        assert self.backup is not None  # noqa: S101 - else the choice does not exist
        self._stop()
        self.drivers.clear()
        self.newer, self.accepted = self.store.back_up(), NO_CHANGES
        self.store.restored(self.backup)
        self.tell("log", "failed", "is that of a backup")

    def _do_expire(self, sink: str) -> None:
        """Let every driver die, and the sink's marker expire before the next one starts."""
        self.drivers.clear()
        self.program = None
        self.tell(sink, "failed", "its marker has expired")
        self.sinks[sink].forget()

    # -- the steps that errors name -----------------------------------------------------------------------------------

    def _obey(self, what: str, enough: bool = False) -> None:
        """Take a step that the error names. `enough`: the next start is not refused, unless the log changes before."""
        self.obeyed += 1
        self.named = self.store.age if enough else None
        self.counter["obey"] += 1
        self.tell("operator", "recover", f"obeys: {what}")
        ensure(self.obeyed <= OBEYED_MAX, "O10", f"the operator goes round in circles: {self.error}")
        self.error = None

    def _do_take_out(self) -> None:
        self._obey("takes restore= out")
        self.accepted = replace(self.accepted, restore=None)

    def _do_bring_back(self) -> None:
        self._obey("brings the checkpoint back", enough=True)
        self._put(next(each for each in reversed(self.shelf) if self._continues(each)))

    def _continues(self, checkpoint: SparkCheckpoint) -> bool:
        """Return True if the outbox accepts the next batch of this checkpoint."""
        at = checkpoint.next_batch
        next_one = checkpoint.edited(at, checkpoint.offsets.get(at, PlannedOffsets(0, -self.step))).batch(at)
        try:
            judge(self.store.look().state(), next_one)
        except (QueryForeign, BatchUnexpected):
            return False
        return True

    def _do_accept_query(self) -> None:
        self._obey(f"confirms query {self.checkpoint.query}", enough=True)
        self.accepted = Accepted(query=self.checkpoint.query)
        self.store.accepted = {self.checkpoint.query}

    def _do_restore(self, epoch: int) -> None:
        self._obey(f"restores epoch {epoch}", enough=True)
        self.accepted = Accepted(restore=epoch)

    def _do_branch(self, epoch: int, batch: int) -> None:
        self._obey(f"rewinds to batch {batch}, with restore={epoch}", enough=True)
        self._put(self.checkpoint.up_to(batch))
        self.accepted = Accepted(restore=epoch)

    def _do_go_back(self, batch: int) -> None:
        self._obey(f"rewinds to batch {batch}")
        self._put(self.checkpoint.up_to(batch))

    def _do_newer_backup(self) -> None:
        assert self.newer is not None  # noqa: S101 - else the choice does not exist
        self._obey("brings a newer backup of the store")
        self.drivers.clear()
        self.program = None
        self.store.restored(self.newer)
        self.newer = None

    def _do_accept_loss(self, back: bool) -> None:
        """Accept the loss of epochs. Their rows are removed from the sinks (`back`), or come again."""
        assert self.error is not None  # noqa: S101 - else the choice does not exist
        epoch, incarnation = map(int, _ACCEPTED.findall(self.error.hint)[0])
        self._obey(f"accepts the loss of epochs up to {epoch}")
        # the command is refused as long as a driver may hold the lease
        self.store.later()
        log = self.store.opened()
        log.accept_loss(epoch, incarnation)
        kept = {each.attempt for each in self.store.by_number.values()}
        for sink in self.sinks.values():
            if back:
                sink.take_back(kept)
            self.store.may_repeat[sink.name] |= {attempt for attempt, _ in sink.shown if attempt not in kept}
        self.newer = None

    def _do_declare(self) -> None:
        self._obey("declares what the sinks show")
        for sink in self.sinks.values():
            sink.declare()

    # -- ends of drivers ----------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        for driver in [each for each in self.drivers if each.ended]:
            error = driver.error
            assert error is not None  # noqa: S101 - it has ended
            self.counter[error.condition] += 1
            self.tell("driver", "failed", f"{driver.role}: {str(error).partition(chr(10))[0]}")
            self._judge_overtaken(driver, error)
            driver.leave()
            main = driver is self.program
            self._remove(driver)
            if isinstance(error, PASSING):
                continue
            known = isinstance(error, QueryForeign | BatchUnexpected | PublishConflict | EpochNotFound)
            ensure(known, "O10", f"the query ends for good: {error}")
            if main:
                refused = isinstance(error, QueryForeign | BatchUnexpected) and self.named == self.store.age
                ensure(not refused, "O10", f"the operator did what was named, and is refused: {error}")
                self.error = error

    def _judge_overtaken(self, driver: OutboxDriver, error: CkptError) -> None:
        """O10: the advice of an unexpected batch is for the query's operator, not for a driver that another one has overtaken."""
        if isinstance(error, BatchUnexpected) and not driver.begun:
            newest = driver.checkpoint.at_its_path().newest
            ensure(
                newest == driver.at, "O10", f"a driver at batch {driver.at} is overtaken at {newest}, and gets: {error}"
            )

    # -- the end ------------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """True if the program waits for input that does not come."""
        program = self.program
        if program is None or self.error is not None or not program.idle or program.reruns or program.broken:
            return False
        return self.accepted == NO_CHANGES and not program.work(0, self.rows) and program.begun

    def calm(self) -> None:
        """End all faults, and every driver except the program's newest one."""
        self.faults_left = 0
        self.drivers = [driver for driver in self.drivers if driver is self.program]

    def drain_choices(self) -> list[Choice]:
        """Return work; a new start, if the program has no batch left and has not begun."""
        return [] if self.finished else self.choices() or [("empty", 0)]

    def judge(self) -> None:
        """O2, O3, O6, O10: the query has read its input, its state is whole, every row is shown, acks are true."""
        ensure(self.finished, "O10", "the query has not come to the end of its input")
        here, program = self.checkpoint, self.program
        assert program is not None  # noqa: S101 - it is finished
        # A zombie may have written offsets after it, and died before the plan.
        ended = here.states[program.at - 1]
        ensure(ended == state_at(self.rows), "O3", f"the state ends as {ended}")
        for sink in self.sinks.values():
            self.store.judge_shown(sink)
        self.store.judge_end(here.query, self.rows, self.sinks)
        for name, epoch in self.store.look().state().acked.items():
            marker = self.sinks[name].marker or self.sinks[name].forgotten
            ensure(marker is not None and epoch <= marker.epoch, "O6", f"the log says {name} has epoch {epoch}")

    def names(self) -> list[str]:
        """Return the names of the columns of a story."""
        return ["operator", "driver", "log", *SINKS]

    def mortal(self) -> list[str]:
        """Return the driver: no other process exists here."""
        return ["driver"]

    def crash_of(self, process: str) -> Choice:
        """Return the crash of the newest driver."""
        return ("crash", len(self.drivers) - 1)


_FAULTS = frozenset({*TROUBLES, "empty", "arrive"})
