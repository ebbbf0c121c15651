"""The world of one job on Spark with the shipped rules: `coordination/`, the coordinator's machine, the epoch log.

- Drivers die between any two steps, are replaced while they live, and continue as zombies.
- The log and the sinks refuse a write, or perform it without an answer.
- A task runs twice; a query dies; timers expire at any time.

The oracles judge every committed epoch and all rows that sinks show. State and output of an epoch are those of the rows
before it, less the rows in flight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from checkpoint_lab.spark_batches import SimulatedQuery
from checkpoint_lab.spark_driver import SHAPE, CoreOf, PendingCommit, SparkDriver, astray, shipped
from checkpoint_lab.spark_restores import judge_restores
from checkpoint_lab.spark_sink import SparkSink
from checkpoint_lab.spark_store import GETS, OPERATORS, SINKS, Shared, by_key, in_order, in_the_end, outputs_of
from checkpoint_lab.violations import ensure
from checkpoint_lab.world import Choice, World
from spark_ckpt.connector import EpochOutput, StagedEarly
from spark_ckpt.coordination.job_shape import JobShape
from spark_ckpt.coordination.messages import (
    AcksDue,
    CommitEpoch,
    EpochRequested,
    EpochsReleased,
    OfferMarker,
    Outcome,
    PublishEnded,
    Reason,
    RecordAcks,
    StandbyWaits,
    StopRequested,
)
from spark_ckpt.coordination.patience import Ended, Patience, Pause
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.errors import CkptError, Fenced, IdentityChanged, PublishConflict, StoreOutage

# -- The next steps and the possible faults of one driver of the simulated job.


EVERY = 1_000
BATCHES = ((0, 0), (0, EVERY), (1, 1), (2, EVERY), (1, 0))
"""Size of a batch: rows of each source, segments of each edge."""


def work_of(number: int, driver: SparkDriver, rows: int) -> list[Choice]:
    """Return the next steps of the driver's threads. `number`: the driver's; `rows`: number of rows of each source."""
    found: list[Choice] = []
    if driver.storing:
        # slow: the commit is on its way while other steps happen, and lands by itself (`_do_land`)
        found += [("store", number, how) for how in ("ok", "slow")]
    elif driver.busy:
        # the schedule draws if rows were waiting when the query started
        found += [("coordinate", number, behind) for behind in ((True, False) if driver.query is None else (False,))]
    for sink, lane in driver.lanes.items():
        if lane.now is not None:
            found.append(("publish", number, sink, "ok"))
        elif lane.waiting:
            found.append(_next_of(number, sink, lane.waiting[0]))
    query = driver.query
    if query is not None and query.planned is not None:
        found.append(("run", number, "once"))
    elif query is not None and query.news(rows):
        found += _plans(number, query, rows)
    if driver.sweeper.busy:
        found.append(("sweep", number))
    if driver.trash:
        found.append(("delete", number))
    return found


def _next_of(number: int, sink: str, asked: EpochOutput | StagedEarly | None) -> Choice:
    """Return a publisher's next step for the head of its queue."""
    if asked is None:
        return ("drop", number, sink)
    return ("ask", number, sink) if isinstance(asked, EpochOutput) else ("send", number, sink, "ok")


def _plans(number: int, query: SimulatedQuery, rows: int) -> list[Choice]:
    marker, behind = query.seen < len(query.markers), query.arrived(rows)
    return [
        ("plan", number, most, segments)
        for most, segments in BATCHES
        if marker or (most and behind) or (segments and query.waiting)
    ]


def faults_of(number: int, driver: SparkDriver) -> list[Choice]:
    """Return refusals, lost answers and tasks that run twice."""
    # fail: the write is not done; silent: it is done, and not answered
    found: list[Choice] = [("store", number, how) for how in ("fail", "silent") if driver.storing]
    found += [
        ("publish", number, sink, how)
        for sink, lane in driver.lanes.items()
        if lane.now is not None
        for how in ("fail", "silent")
    ]
    found += [
        # the commit reaches the sink at a later step, or never
        ("delay", number, sink, "late")
        for sink, lane in driver.lanes.items()
        if driver.sends_early and lane.now is not None
    ]
    found += [
        ("send", number, sink, how)
        for sink, lane in driver.lanes.items()
        if lane.now is None and lane.waiting and isinstance(lane.waiting[0], StagedEarly)
        for how in ("fail", "silent")
    ]
    if driver.query is not None and driver.query.planned:
        # the tasks run again, as Spark does when it has lost their output
        found.append(("run", number, "twice"))
    return found


def missed_by(number: int, driver: SparkDriver) -> list[Choice]:
    """Return the missed barriers: a key group of one operator does not get the barrier."""
    reached = driver.query is not None and driver.query.barrier is not None
    return [("miss", number, operator) for operator in OPERATORS if reached]


def is_recorded(driver: SparkDriver, sink: str, epoch: int) -> bool:
    """Return True if the driver knows that the sink has the epoch, and all due acknowledgements are recorded."""
    unpublished = any(
        each <= epoch for name, epochs in driver.core.publication.unpublished.items() if name == sink for each in epochs
    )
    said = any(isinstance(each, PublishEnded) and each.sink == sink for each in (*driver.inbox, *driver.answers))
    records = any(isinstance(each, RecordAcks) for each in driver.effects)
    waits = driver.deciding.unrecorded and any(isinstance(each, AcksDue) for _, each in driver.timers)
    return driver.query is not None and not (unpublished or said or records or waits or driver.lanes[sink].now)


# -- Oracle of the restart policy: the shipped policy decides after each incarnation, and its verdict is judged.
#
# Time, in seconds, advances only with incarnations and pauses, so that an outage lasts as long as its pauses.


FAILURES, PATIENCE_S, FIRST_PAUSE_S, LONGEST_PAUSE_S = 2, 300.0, 60.0, 200.0


class SparkRun:
    """One program: incarnation after incarnation until one stops, or until patience ends."""

    def __init__(self) -> None:
        self._patience = Patience(FAILURES, PATIENCE_S, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._now_s = 0.0
        self._failures = 0
        self._waited_s = 0.0

    def goes_on(self, error: CkptError, lived_s: float, progressed: bool, committed: bool) -> bool:
        """Return True if another incarnation follows.

        `progressed`: the rules' report; `committed`: it committed an epoch.

        O10: one follows exactly as long as failures and outages are within their bounds.
        """
        self._now_s += lived_s
        verdict = self._patience.after(Ended(error, self._now_s, lived_s, progressed))
        within = self._within(error, lived_s, committed)
        ensure(
            isinstance(verdict, Pause) == within, "O10", f"{verdict} after {error.condition}, committed: {committed}"
        )
        if isinstance(verdict, Pause):
            self._now_s += verdict.pause_s
            self._waited_s += verdict.pause_s if isinstance(error, StoreOutage) else 0.0
        return within

    def _within(self, error: CkptError, lived_s: float, committed: bool) -> bool:
        outage = isinstance(error, StoreOutage)
        if committed:
            self._failures = 0
        # a committed epoch, a failure of another kind or a long run ends the outage
        if committed or not outage or lived_s >= PATIENCE_S:
            self._waited_s = 0.0
        if outage:
            return self._waited_s < PATIENCE_S
        self._failures += 1
        return error.retriable and self._failures <= FAILURES


ROWS, FAULTS, SAVEPOINTS = 12, 1_000, 2
STANDBYS = 4
"""Number of times that a standby begins to wait, or stops."""
OUTAGE = 6
"""Number of writes that an unreachable store does not answer."""


LAST = 1_000_000
"""An epoch after every other one."""


class SparkWorld(World):
    """One job, its store and its sinks.

    Drivers are numbered in the order of their incarnations; the last one is the job's.

    - `rows`: number of rows of each source
    - `draining`: the job ends by itself once it has read them
    - `deaths`: drivers and queries die
    - `shape`: the job's shape
    - `forgetful`: sinks lose their markers while no driver lives
    """

    LAGGARDS: tuple[str, ...] = ("", "coordinate", "ask", "publish", "plan", "run", "store", "delete", "land", "sweep")
    AHEAD_LAGGARDS = ("send",)
    """Additional laggards of a job whose sinks use early sends."""

    FLEETING = frozenset(
        f"{kind} {how}" for kind in ("begin", "store", "publish", "send") for how in ("fail", "silent")
    ) | {"begin astray", "delay late", "late commit", *(f"miss {operator}" for operator in OPERATORS)}

    def __init__(
        self,
        core_of: CoreOf = shipped,
        rows: int = ROWS,
        draining: bool = False,
        deaths: bool = True,
        shape: JobShape = SHAPE,
        forgetful: bool = False,
    ) -> None:
        self.forgetful = forgetful
        self.core_of = core_of
        self.rows = rows
        self.draining = draining
        self.deaths = deaths
        self.shape = shape
        if any(place.sends_early for place in shape.sinks.values()):
            self.LAGGARDS = (*self.LAGGARDS, *self.AHEAD_LAGGARDS)
        self.durable = Shared()
        self.sinks = {sink: SparkSink(sink) for sink in SINKS}
        self.drivers: list[SparkDriver] = []
        self.faults_left = FAULTS
        self.savepoints = self.standbys = 0
        self.asked: list[tuple[int, str]] = []
        """Requested savepoints, each with the incarnation that got the request."""
        self.run = SparkRun()
        self.away = 0
        """Number of further writes that the store does not answer."""
        self.counter: Counter[str] = Counter()
        self.under_way: list[tuple[SparkDriver, PendingCommit]] = []
        """Commits that the log has not answered, with their drivers, dead or alive."""

    # -- what can happen -----------------------------------------------------------------------------------------------

    @property
    def current(self) -> SparkDriver | None:
        """The driver of the newest incarnation, if it lives."""
        newest = self.drivers[-1] if self.drivers else None
        # with a newer incarnation in the log this driver is a zombie, also before its successor has begun
        return newest if newest and newest.incarnation == self._incarnation() else None

    def _incarnation(self) -> int:
        return self.durable.incarnation

    def choices(self) -> list[Choice]:
        """Return all choices except faults and timers."""
        found: list[Choice] = [] if self.current else [("begin",)]
        for number, driver in enumerate(self.drivers):
            found += work_of(number, driver, self.rows)
        found += [("release", number) for number, driver in enumerate(self.drivers) if self._may_release(driver)]
        found += [("land", number) for number in range(len(self.under_way))]
        if self.savepoints < SAVEPOINTS and self.current and self.current.query:
            found.append(("savepoint",))
        if self.shape.limits.standby_interval_ms is not None and self.standbys < STANDBYS and self.current:
            found.append(("standby",))
        return found

    def timers(self) -> list[Choice]:
        """Return expired waits for the log, then the timers of all drivers, each driver's earliest first."""
        waits: list[Choice] = [("overdue", each) for each, driver in enumerate(self.drivers) if driver.deciding.asking]
        found = [
            (due, index, number)
            for index, driver in enumerate(self.drivers)
            if driver.query is not None
            for number, (due, _) in enumerate(driver.timers)
        ]
        return [*waits, *(("timer", index, number) for _, index, number in sorted(found))]

    def faults(self) -> list[Choice]:
        """Return deaths, replacements, refusals, lost answers, tasks that run twice, and missed barriers.

        Without deaths, a missed barrier is the only way in which the barrier's batch fails: an epoch that is aborted
        after its barrier needs a driver that survives.
        """
        if not self.faults_left:
            # a marker that can be lost is the only fault that a forgetful world then offers
            return []
        if self.forgetful and (forgotten := self._expiring()):
            return forgotten
        found: list[Choice] = [] if self.current else [("begin", "fail"), ("begin", "silent")]
        if not self.current and self.durable.manifests():
            found.append(("begin", "astray"))
        if self.deaths:
            found += self._deaths()
        drivers = list(enumerate(self.drivers))
        found += [fault for each in drivers for fault in faults_of(*each)]
        found += [("commit", name) for name, sink in self.sinks.items() if sink.late is not None]
        found += [("lose", name, "lost") for name, sink in self.sinks.items() if sink.ahead is not None]
        missed = [fault for each in drivers for fault in missed_by(*each)]
        # without deaths, a barrier that can be missed is the only fault offered
        return missed if missed and not self.deaths else [*found, *missed]

    def _expiring(self) -> list[Choice]:
        # Not while the log does not know of a publish: that window is short, and no rule can close it.
        driver = self.current if len(self.drivers) == 1 else None
        markers = [(name, sink.marker) for name, sink in self.sinks.items() if sink.marker and sink.late is None]
        return [("expire", name, "forgotten") for name, at in markers if driver and is_recorded(driver, name, at.epoch)]

    def fault_of(self, choice: Choice) -> str:
        """Return the kind of a fault, with the way in which it fails."""
        match choice:
            case ("commit", *_):
                return "late commit"
            case ("end", str(how), *_):
                return how
            case _:
                return f"{choice[0]} {choice[-1]}"

    def _deaths(self) -> list[Choice]:
        return [
            *([("end", "usurped")] if self.current else []),
            *([("end", "store away")] if not self.away else []),
            *(("end", "crash", number) for number in range(len(self.drivers))),
            *(("end", "query lost", number) for number, driver in enumerate(self.drivers) if driver.query),
        ]

    # -- making it happen ----------------------------------------------------------------------------------------------

    def do(self, choice: Choice) -> None:
        """Perform the choice: call the method of its kind."""
        if _may_be_wrong(choice) and choice in self.faults():
            self.faults_left -= 1
            self.counter[self.fault_of(choice)] += 1
        self.act(choice)
        self._collect_ends()

    def _mood(self, how: str) -> str:
        """Return the outcome of the next append; an unreachable store fails it."""
        if how != "ok" or not self.away:
            return how
        self.away -= 1
        return "fail"

    def _do_begin(self, how: str = "ok") -> None:
        if how == "astray":
            self._begin_astray()
            return
        self.durable.mood = self._mood(how)
        try:
            driver = SparkDriver(self.durable, self.core_of, shape=self.shape)
        except CkptError as error:
            ensure(error.retriable, "O10", f"the job cannot begin: {error}")
            self._follow(error, 0, progressed=False, committed=False)
            self.tell("log", "failed", f"incarnation {self._incarnation()}: {how}")
        else:
            self.drivers.append(driver)
            begun = f"incarnation {driver.incarnation} from epoch {driver.base.epoch}"
            self.tell("driver", "recover", begun + _in_flight(driver.base))
        # a start that failed before its append has left the mood to the next writer
        self.durable.mood = "ok"

    def _begin_astray(self) -> None:
        """O11: a job whose source or sink has another endpoint must not begin, and must not change the log."""
        before, refused = len(self.durable.rows), False
        try:
            SparkDriver(self.durable, self.core_of, shape=self.shape, found=astray(self.step))
        except IdentityChanged:
            refused = True
        ensure(
            refused and len(self.durable.rows) == before, "O11", "a job begins with another source or sink than its own"
        )
        self.tell("driver", "failed", "another source or sink: refused")

    def _do_end(self, how: str, number: int = -1) -> None:
        # one kind of fault for four ways to die, so that most of a schedule is work
        newest = self.current
        match how:
            case "store away":
                self.away = OUTAGE
                self.tell("log", "failed", "away")
            case "usurped":
                # another program takes over, and its patience is its own
                self.run = SparkRun()
                self._do_begin()
            case "crash":
                self.tell("driver", "crash", f"incarnation {self.drivers[number].incarnation}")
                if self.drivers.pop(number) is newest:
                    self.run = SparkRun()
            case _:
                self.tell("driver", "failed", f"incarnation {self.drivers[number].incarnation}: its query died")
                self.drivers[number].lose_query()

    def _do_coordinate(self, number: int, behind: bool) -> None:
        driver = self.drivers[number]
        if driver.effects and isinstance(driver.effects[0], OfferMarker):
            self.tell("driver", "inject", f"marker of epoch {driver.effects[0].marker.epoch}")
        # while the store is away, acknowledgements fail too
        self.durable.mood = self._mood("ok") if driver.effects and isinstance(driver.effects[0], RecordAcks) else "ok"
        driver.step(behind)
        self.durable.mood = "ok"
        while driver.announced:
            sink, epoch = driver.announced.popleft()
            self.sinks[sink].judge_announced(epoch, driver.incarnation)

    def _do_store(self, number: int, how: str) -> None:
        driver = self.drivers[number]
        self.tell("driver", "decide", f"incarnation {driver.incarnation}")
        if how == "slow":
            effect = driver.effects.popleft()
            assert isinstance(effect, CommitEpoch)  # noqa: S101 - else the choice does not exist
            self.under_way.append((driver, driver.deciding.ask(effect)))
            return
        before = self.durable.decided
        self.durable.mood = self._mood(how)
        driver.step(False)
        self.durable.mood = "ok"
        self._say_decided(before)
        if how != "ok":
            self.tell("log", "failed", how)

    def _do_land(self, number: int) -> None:
        """Let a delayed commit reach the log."""
        driver, decision = self.under_way.pop(number)
        before = self.durable.decided
        error = decision.land()
        self._say_decided(before)
        # the driver no longer waits for this commit, or is dead: the log must fence it or accept it whole
        late = driver.deciding.asking is not decision or driver not in self.drivers
        if late:
            self.counter["late fenced" if isinstance(error, Fenced) else "late decided"] += 1
            ensure(error is None or isinstance(error, Fenced), "O10", f"a late decision: {error}")
        driver.deciding.answered(decision, error)

    def _do_overdue(self, number: int) -> None:
        self.counter["overdue"] += 1
        self.tell("log", "failed", "no answer in time")
        self.drivers[number].deciding.wait_no_longer()

    def _say_decided(self, before: Mapping[str, int]) -> None:
        for epoch in sorted(set(self.durable.decided.values()) - set(before.values())):
            self.counter["complete"] += 1
            in_flight = _in_flight(self.durable.manifests()[-1])
            self.tell("log", "complete", f"epoch {epoch}{in_flight}")
            if in_flight:
                self.counter["in flight"] += 1

    def _may_release(self, driver: SparkDriver) -> bool:
        waits = self.shape.awaits_lines and driver.query is not None
        return waits and driver.released < driver.core.last_committed

    def _do_release(self, number: int) -> None:
        """The other stages of the program have decided the line of the newest epoch."""
        driver = self.drivers[number]
        driver.released = driver.core.last_committed
        driver.inbox.append(EpochsReleased(driver.released))

    def _do_ask(self, number: int, sink: str) -> None:
        driver = self.drivers[number]
        asked = driver.lanes[sink].waiting[0]
        if self.shape.awaits_lines and isinstance(asked, EpochOutput):
            ensure(asked.epoch <= driver.released, "O11", f"{sink} gets epoch {asked.epoch}, which is not released")
        driver.ask(sink)

    def _do_publish(self, number: int, sink: str, how: str) -> None:
        lane = self.drivers[number].lanes[sink]
        self.tell(sink, "publish", f"epoch {lane.now.epoch if lane.now else 0}: {how}")
        self.drivers[number].publish(self.sinks[sink], how)
        self._judge_sink(sink)

    def _judge_sink(self, sink: str) -> None:
        self.sinks[sink].judge(self.rows)
        self.sinks[sink].judge_shown(self.durable)

    def _do_delay(self, number: int, sink: str, how: str) -> None:
        self._do_publish(number, sink, how)

    def _do_commit(self, sink: str) -> None:
        """Let a commit arrive that no publisher waits for. It may never arrive."""
        self.tell(sink, "publish", "a commit that was under way arrives")
        self.sinks[sink].land()
        self._judge_sink(sink)

    def _do_send(self, number: int, sink: str, how: str) -> None:
        self.counter["sent early"] += 1
        self.tell(sink, "publish", f"rows of an epoch that is not committed: {how}")
        self.drivers[number].send(self.sinks[sink], how)
        self._judge_sink(sink)

    def _do_drop(self, number: int, sink: str) -> None:
        self.counter["dropped ahead"] += 1
        self.drivers[number].drop_early_send(self.sinks[sink])

    def _do_lose(self, sink: str, _how: str) -> None:
        self.tell(sink, "failed", "its open transaction is lost")
        self.sinks[sink].lose()

    def _do_expire(self, sink: str, _how: str) -> None:
        # the only driver there is (`_expiring`)
        self._do_end("crash", 0)
        self.tell(sink, "failed", "its marker has expired")
        self.sinks[sink].forget()

    def _declared(self) -> bool:
        """Perform the advice of the missing-marker error on every sink. Return True if a marker was missing."""
        declared = [sink.declare() for sink in self.sinks.values()]
        return any(declared)

    def _do_plan(self, number: int, most: int, segments: int) -> None:
        query = self.drivers[number].query
        assert query is not None  # noqa: S101 - else the choice does not exist
        query.plan(self.rows, most, segments)

    def _do_run(self, number: int, how: str) -> None:
        self.tell("driver", "read", f"incarnation {self.drivers[number].incarnation}: a batch, {how}")
        self.drivers[number].run_batch(how, self.rows if self.draining else None)

    def _do_miss(self, number: int, operator: str) -> None:
        self._do_run(number, operator)

    def _do_delete(self, number: int) -> None:
        self.counter["delete"] += 1
        self.drivers[number].delete()

    def _do_sweep(self, number: int) -> None:
        if gone := self.drivers[number].sweep():
            self.counter["swept"] += 1
            self.tell("driver", "delete", f"{gone} unneeded epochs or files")

    def _do_timer(self, index: int, number: int) -> None:
        self.drivers[index].run_out(number)

    def _do_savepoint(self) -> None:
        self.savepoints += 1
        assert self.current is not None  # noqa: S101 - else the choice does not exist
        name = f"named-{self.savepoints}"
        self.asked.append((self.current.incarnation, name))
        self.current.inbox.append(EpochRequested(Reason.SAVEPOINT, name))

    def _do_standby(self) -> None:
        self.standbys += 1
        assert self.current is not None  # noqa: S101 - else the choice does not exist
        self.current.inbox.append(StandbyWaits(self.standbys % 2 == 1))

    def _do_stop(self) -> None:
        assert self.current is not None  # noqa: S101 - else the choice does not exist
        self.current.stopping = True
        if self.shape.awaits_lines:
            # The others have stopped, too, and decide the line of the final epoch.
            self.current.released = LAST
            self.current.inbox.append(EpochsReleased(LAST))
        self.current.inbox.append(StopRequested())

    def _collect_ends(self) -> None:
        for driver in [each for each in self.drivers if each.ending is not None]:
            ending = driver.ending
            assert ending is not None  # noqa: S101 - chosen so
            # the current driver may end without an error, with a retriable one, or for a lost marker
            if ending.outcome is not Outcome.FENCED and driver is self.current:
                final = ending.error is None or ending.error.retriable
                final = final or (isinstance(ending.error, PublishConflict) and self._declared())
                ensure(final, "O10", f"incarnation {driver.incarnation} ended for good: {ending.error}")
                if ending.error is not None:
                    self._follow(ending.error, driver.now_ms, driver.core.progressed, driver.committed)
            # one that stopped without an error stays for the judges
            if not self._well(driver):
                self._leave(driver)
                self.drivers.remove(driver)

    def _follow(self, error: CkptError, lived: int, progressed: bool, committed: bool) -> None:
        """Judge the end of an incarnation. If no other follows, the program is started again."""
        if not self.run.goes_on(error, float(lived), progressed, committed):
            self.counter["out of retries"] += 1
            self.run = SparkRun()

    def _leave(self, driver: SparkDriver) -> None:
        try:
            driver.leave()
        except CkptError as error:
            self.counter[error.condition] += 1

    def _well(self, driver: SparkDriver) -> bool:
        ending = driver.ending
        return ending is not None and ending.outcome is Outcome.STOPPED and ending.error is None

    # -- the end -------------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """True if the job has stopped and nothing is missing."""
        return bool(self.current and self._well(self.current))

    def calm(self) -> None:
        """End all faults. Standbys come and go again: the rows that are left need an interval that ends."""
        self.faults_left = self.away = self.standbys = 0

    def drain_choices(self) -> list[Choice]:
        """Return work, then the earliest timer; a stop once an epoch holds all rows; nothing after the end."""
        current = self.current
        if self.finished:
            return []
        if current and current.query and not current.stopping and not self.draining and self._has_all(current):
            return [("stop",)]
        return self.choices() or self.timers()[:1]

    def _has_all(self, driver: SparkDriver) -> bool:
        base = driver.core.cut.base
        read = all(cursor["n"] == self.rows for cursor in base.cursors.values())
        return read and not any(cut.files for cut in base.edges.values())

    def judge(self) -> None:
        """O3: every sink shows every row. O6: the log's acknowledgements are true. Every kept epoch can be restored."""
        whole = in_the_end(self.rows)
        self._declared()
        for sink in self.sinks.values():
            wanted, shown = outputs_of(whole.counts[GETS[sink.name]]), in_order(row.name for row in sink.rows)
            ensure(by_key(sink.rows) == wanted, "O3", f"{sink.name} shows {by_key(sink.rows)}, expected {wanted}")
            ensure(
                shown == whole.shown[sink.name], "O3", f"{sink.name} shows {shown}, expected {whole.shown[sink.name]}"
            )
        log_state = self.durable.log().state()
        for name, epoch in log_state.acked.items():
            marker = self.sinks[name].marker
            ensure(marker is not None and epoch <= marker.epoch, "O6", f"the log says {name} has epoch {epoch}")
        ensure(self.finished, "O10", "the job has not stopped")
        self._judge_last(self.drivers[-1])
        judge_restores(self.durable, self.core_of, self.rows)

    def _judge_last(self, driver: SparkDriver) -> None:
        """O6: after a clean end the log knows each sink's newest epoch.

        O10: the last driver has taken every requested savepoint.
        """
        driver.leave()
        log_state = self.durable.log().state()
        for sink in self.sinks.values():
            known, has = log_state.acked.get(sink.name, 0), sink.marker.epoch if sink.marker else 0
            ensure(known == has, "O6", f"the log says {sink.name} has epoch {known}, it has {has}")
        for incarnation, name in self.asked:
            # a request ends with the driver that got it: no other one knows of it
            served = name in log_state.savepoints or driver.refused or incarnation != driver.incarnation
            ensure(served, "O10", f"savepoint {name} was asked for and never taken")

    def names(self) -> list[str]:
        """Return the names of the columns of a story."""
        return ["driver", "log", *SINKS]

    def mortal(self) -> list[str]:
        """Return the driver: no other process exists here."""
        return ["driver"]

    def crash_of(self, process: str) -> Choice:
        """Return the crash of the newest driver."""
        return ("end", "crash", len(self.drivers) - 1)


def _in_flight(manifest: Manifest) -> str:
    """Return the number of rows in flight on each edge, for stories."""
    rows = {name: cut.produced - cut.consumed for name, cut in manifest.edges.items()}
    told = " and ".join(f"{count} on {name}" for name, count in rows.items() if count)
    return f", with {told}" if told else ""


def _may_be_wrong(choice: Choice) -> bool:
    # a cheap filter: only a choice that passes it is looked for among all faults, whose list takes long
    return choice[0] in ("end", "miss", "commit") or choice[-1] in (
        "fail", "silent", "astray", "twice", "late", "lost", "forgotten",
    )  # fmt: skip
