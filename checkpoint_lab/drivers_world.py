"""The world of a job's drivers: one leads, the others wait, and the job's log names the leader.

The shipped rules decide: `coordination.standby.Standby` decides when a driver may take a lease, `EpochLog`, with its
proposals and its compare-and-swap, if it gets it. The world adds faults:

- processes die, pause and stop in order
- clocks run at different rates; wall clocks are wrong
- the store stops answering one host, or all hosts

A commit is read and proposed in one step and appended in another, so that anything may happen in between. A commit
under way may be appended while its process is paused, or after its death.

Time is exact. It passes only when no process that can act has anything to do.

Choices:

- work: `look n`, `propose n lane`, `append n`, `miss n` (the store does not answer)
- optional steps: `begin n`, `decide n`, `late i`
- clocks: `advance ms`
- faults: `crash n`, `pause n`, `wake n`, `cut n`, `heal n`, `away`, `back`, `fail n`, `start n how`, `jump n ms` (the wall clock
  is set)
- an operator's actions: `stop n` and `ask` (for a handover)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import cast

from checkpoint_lab.drivers_node import (
    DriverCommit,
    DriverNode,
    JobLog,
    LeaseLedger,
    ObservedLease,
    Since,
    Times,
    View,
    carry_out,
    judge_silence,
    judge_takeover,
)
from checkpoint_lab.violations import NoEnd
from checkpoint_lab.world import Choice, World
from checkpoint_protocols.machine import Effect, Event
from spark_ckpt.coordination.standby import NO_OTHERS, HolderGone, LeaseRead, Standby, TakeoverLost, TakeoverWon
from spark_ckpt.coordination.standby import TakeOver as MayTakeOver
from spark_ckpt.epochs.records import Holder
from spark_ckpt.errors import CkptError, Fenced, StoreInUse, StoreUnreachable
from spark_ckpt.store.epoch_log import EpochLog, LogState
from spark_ckpt.store.log_table import LogTable

HOSTS = {"a": ("here", 100, 0), "b": ("here", 100, 60), "c": ("there", 100, -60)}
"""Host, rate of its clock in percent of time, and error of its wall clock in milliseconds, by process."""
WALL_MS = 1_000_000
STARTS = ("by the clock", "takeover")
"""Ways in which a driver starts without waiting."""
TOLD = {"incarnation": "leads", "epoch": "decide", "heartbeat": "renews", "released": "returns"}
TROUBLES = ("crash", "pause", "wake", "cut", "heal", "away", "back", "fail", "start", "stop", "ask", "late", "jump")
"""For stories: the word for each kind of row, and the choices that are reported."""
STEPS_OF_TIME = (1, 4, 15)
JUMPS_MS = (-60, 60)
"""By how much a wall clock is set: more than a lease."""


@dataclass(frozen=True)
class DriversRules:
    """The rules that a test can replace by wrong ones. `restarts`: token of a job's next incarnation."""

    standby: type[Standby] = Standby
    restarts: int | None = NO_OTHERS


@dataclass(frozen=True)
class Troubles:
    """Budgets of the faults."""

    crashes: int = 3
    pauses: int = 3
    cuts: int = 2
    outages: int = 1
    failures: int = 2
    starts: int = 1
    stops: int = 3
    handovers: int = 1
    jumps: int = 0

    def times(self, number: int) -> Troubles:
        """Return these budgets, each multiplied by `number`."""
        return Troubles(*(number * budget for budget in astuple(self)))


@dataclass(frozen=True, slots=True)
class LateWrite:
    """A commit that outlived its process."""

    commit: DriverCommit
    log: EpochLog
    holder: Holder


@dataclass
class _Outside:
    """Facts that no process knows. `decided`: an epoch has been committed since the calm."""

    now: int = 0
    lives: int = 0
    since: Since = field(default_factory=Since)
    ledger: LeaseLedger = field(default_factory=LeaseLedger)
    away: bool = False
    calm: bool = False
    decided: bool = False


class DriversWorld(World):
    """The log, and the drivers that compete for its job."""

    LAGGARDS = ("", "look", "append", "propose")
    FLEETING = frozenset({"append", "late", "start"})

    def __init__(
        self,
        hosts: Mapping[str, tuple[str, int, int]] = HOSTS,
        troubles: Troubles | None = None,
        rules: DriversRules | None = None,
        times: Times | None = None,
    ) -> None:
        troubles, self.rules, self.times = troubles or Troubles(), rules or DriversRules(), times or Times()
        self.budget = {"crash": troubles.crashes, "pause": troubles.pauses, "cut": troubles.cuts}
        self.budget |= {"away": troubles.outages, "fail": troubles.failures, "start": troubles.starts}
        self.budget |= {"stop": troubles.stops, "ask": troubles.handovers, "jump": troubles.jumps}
        self.outside = _Outside()
        self.job_log = JobLog()
        self.observer = EpochLog(cast(LogTable, View(self.job_log)), self.job_log.verify, self.wall)
        self.nodes = {name: DriverNode(name, *each, self.times) for name, each in hosts.items()}
        self.late: list[LateWrite] = []
        self.counter: Counter[str] = Counter()
        for node in self.nodes.values():
            self._begin(node)

    @property
    def now(self) -> int:
        """Milliseconds since the world began."""
        return self.outside.now

    def wall(self) -> int:
        """Return the reading of a correct wall clock, in ms."""
        return WALL_MS + self.now

    # -- what can happen -------------------------------------------------------------------------------------------

    def choices(self) -> Sequence[Choice]:
        """Return the work that happens before time passes."""
        return [choice for node in self.nodes.values() if node.awake for choice in self._of(node)]

    def at_leisure(self) -> Sequence[Choice]:
        """Return late commits, new processes and the next epoch."""
        found: list[Choice] = [("late", number) for number in range(len(self.late))]
        found += [("begin", node.name) for node in self.nodes.values() if not node.up]
        return found + [("decide", node.name) for node in self._leaders() if node.may_decide(self.now)]

    def _of(self, node: DriverNode) -> Iterator[Choice]:
        if node.waits:
            if node.local(self.now) >= node.look_ms:
                yield "look", node.name
        elif node.under_way is not None:
            if node.able:
                yield "append", node.name
        elif node.wants_to_renew(self.now):
            yield ("propose", node.name, "keeper") if node.able else ("miss", node.name)
        if node.under_way is None and node.todo:
            if node.able:
                yield "propose", node.name, "main"
            # a leader's other commits wait: its renewals notice that the store does not answer
            elif not node.incarnation:
                yield "miss", node.name

    def _leaders(self) -> list[DriverNode]:
        """Return the drivers that believe to lead and have no work."""
        idle = [node for node in self.nodes.values() if node.incarnation and not node.todo and not node.ends]
        return [node for node in idle if node.able and node.under_way is None]

    def timers(self) -> Sequence[Choice]:
        """Return steps of time, never past the next work of a process that is awake."""
        if self.choices():
            return []
        dues = [due for node in self.nodes.values() if node.awake and (due := node.due(self.now)) is not None]
        most = min(dues, default=self.now + max(STEPS_OF_TIME)) - self.now
        return [("advance", ms) for ms in dict.fromkeys((most, *STEPS_OF_TIME)) if 0 < ms <= most]

    def faults(self) -> Sequence[Choice]:
        """Return the faults that are possible next, and their ends."""
        found: list[Choice] = []
        for node in self.nodes.values():
            found += self._troubles_of(node)
        if self.outside.away:
            found.append(("back",))
        elif self.budget["away"]:
            found.append(("away",))
        if self.budget["ask"] and self.observer.state().incarnation:
            found.append(("ask",))
        return found

    def _troubles_of(self, node: DriverNode) -> Iterator[Choice]:
        name = node.name
        if node.awake:
            yield from ((kind, name) for kind in ("crash", "pause") if self.budget[kind])
        if node.paused:
            yield "wake", name
            # a paused process cannot act, but its commit under way may still arrive
            if node.under_way is not None and node.view.reaches:
                yield "append", name
        if node.up and self.budget["jump"]:
            yield from (("jump", name, ms) for ms in JUMPS_MS)
        if node.cut:
            yield "heal", name
        elif self.budget["cut"]:
            yield "cut", name
        if node.incarnation and node.awake and not node.ends:
            yield from ((kind, name) for kind in ("fail", "stop") if self.budget[kind])
        if node.waits and node.able and self.budget["start"]:
            yield from (("start", name, how) for how in STARTS)

    def drain_choices(self) -> Sequence[Choice]:
        """Return the choices until a driver leads and has committed an epoch since the calm."""
        if self.outside.decided and not self.late:
            return []
        return self.choices() or self.at_leisure() or self.timers()

    # -- one step --------------------------------------------------------------------------------------------------

    def do(self, choice: Choice) -> None:
        """Perform the choice, then judge the new rows and the silence of the lease."""
        self.step += 1
        kind = str(choice[0])
        self.counter[kind] += 1
        if kind in self.budget:
            self.budget[kind] -= 1
        if kind in TROUBLES:
            self.tell(str(choice[1]) if choice[1:] else "", kind)
        getattr(self, f"_do_{kind}")(*choice[1:])
        judge_silence(self.nodes.values(), self._lease(), self.now)

    def _handle(self, node: DriverNode, event: Event) -> list[Effect]:
        assert node.standby is not None  # noqa: S101 - for the type checker; callers looked
        self.reach(node.standby, event)
        return node.standby.handle(event)

    def _begin(self, node: DriverNode, waits: bool = True) -> None:
        self.outside.lives += 1
        standby = self.rules.standby(self.times.margin_ms, self.times.gap_ms) if waits else None
        node.begin(self.job_log, self.outside.lives, self.now, self.wall, standby)
        node.view.reaches = not (node.cut or self.outside.away)
        self.tell(node.name, "begins", f"life {node.life}")

    def _do_begin(self, name: str) -> None:
        self._begin(self.nodes[name])

    def _do_start(self, name: str, how: str) -> None:
        """Start a driver that does not wait, in the place of one that does."""
        node = self.nodes[name]
        self._begin(node, waits=False)
        node.todo.append(DriverCommit("begin", usurps=how == "takeover"))

    def _do_look(self, name: str) -> None:
        """Look at the lease, as `driver.standby.lookout` does."""
        node = self.nodes[name]
        # before the read: a store that does not answer must not end the looks
        node.look_ms = node.local(self.now) + self.times.read_ms
        try:
            read = node.log.state()
        except StoreUnreachable:
            return
        local_ms = node.local(self.now)
        effects = self._handle(
            node, LeaseRead(read.incarnation, read.lease_token, read.lease_ms, read.is_free, local_ms)
        )
        # A dead process on the same host needs no wait for the lease to end. Its death matters only until the lease has ended.
        if not effects and self._is_gone(read.holder, node):
            effects = self._handle(node, HolderGone(read.incarnation))
        for effect in effects:
            if isinstance(effect, MayTakeOver):
                self.tell(name, "takes over", effect.why)
                node.todo.append(DriverCommit("begin", token=effect.token))

    def _is_gone(self, holder: Holder | None, seen_by: DriverNode) -> bool:
        # a host sees only its own processes die
        return holder is not None and holder.host == seen_by.host and self._living(holder) is None

    def _living(self, holder: Holder | None) -> DriverNode | None:
        if holder is None:
            return None
        return next((node for node in self.nodes.values() if node.up and node.life == holder.pid), None)

    def _lease(self) -> ObservedLease:
        ledger, holder = self.outside.ledger, self.observer.state().holder
        host = holder.host if holder else ""
        return ObservedLease(ledger.newest, ledger.is_free, host, self._living(holder), self.outside.since)

    def _do_propose(self, name: str, lane: str) -> None:
        """Read the log; the proposal stays based on that reading until it is appended."""
        node = self.nodes[name]
        if lane == "keeper":
            node.under_way = DriverCommit("renew", node.incarnation)
            node.renewed(self.now)
        else:
            node.under_way = node.todo.pop(0)
            if node.under_way.what == "leave":
                self._close_keeper(node)
        node.log.state()
        # Pinned from here to the append: a process may be suspended between its look at the log and its write.
        node.view.pinned = True

    def _close_keeper(self, node: DriverNode) -> None:
        if node.wants_to_renew(self.now):
            # the keeper has begun this renewal, which waits for its turn at the log
            node.todo.append(DriverCommit("renew", node.incarnation))
        node.renew_ms = None

    def _do_miss(self, name: str) -> None:
        """Handle a store that does not answer.

        A keeper tries again later, a standby keeps looking, and a driver that does not wait ends.
        """
        node = self.nodes[name]
        if node.incarnation:
            node.missed(self.now)
        elif node.standby is None:
            self._end(node)
        else:
            node.todo.clear()
            self._handle(node, TakeoverLost())

    def _do_append(self, name: str) -> None:
        node = self.nodes[name]
        commit, node.under_way = cast(DriverCommit, node.under_way), None
        # a paused process cannot propose again what was lost to a faster commit
        node.view.acts = node.awake
        try:
            result = self._appended(commit, node.log, node.holder, node)
        except CkptError as error:
            self._refused(node, commit, error)
        else:
            self._landed(node, commit, result)
        node.view.pinned, node.view.acts = False, True

    def _appended(self, commit: DriverCommit, log: EpochLog, holder: Holder, by: DriverNode) -> LogState | int:
        """Append through the shipped log; judge the new rows."""
        before, rows = self._lease(), len(self.job_log.rows)
        try:
            return carry_out(commit, log, holder, self.times.lease_ms)
        finally:
            for row, _ in self.job_log.rows[rows:]:
                told = "ends" if commit.what == "keep" else TOLD[row.kind]
                self.tell(by.name, told, f"incarnation {row.incarnation}")
                self.outside.ledger.take_in(row)
                self.outside.since = replace(self.outside.since, row=self.now)
                if row.kind == "incarnation":
                    judge_takeover(commit, by, before, self.now)

    def _landed(self, node: DriverNode, commit: DriverCommit, result: LogState | int) -> None:
        if isinstance(result, int):
            if node.standby is not None and not node.incarnation:
                self._handle(node, TakeoverWon())
            node.leads(result, self.now)
        elif commit.what == "keep":
            # `keep` has ended an incarnation and not the job: the same process begins the next one
            node.todo.append(DriverCommit("begin", node.incarnation, self.rules.restarts))
        elif node.renew_ms is None:
            self._left(node)
        else:
            self._renewed(node, commit, result)

    def _left(self, node: DriverNode) -> None:
        # a renewal of the closed keeper may still wait for its turn
        if not node.todo:
            self._end(node)

    def _renewed(self, node: DriverNode, commit: DriverCommit, before: LogState) -> None:
        node.last_renewal = True
        node.renewed(self.now)
        if commit.what == "decide":
            node.has_decided(self.now)
            self.outside.decided = self.outside.calm
        # a renewal reads the log, so by it the holder learns of a request
        if before.handover_asked and not node.ends:
            self._leave(node)

    def _refused(self, node: DriverNode, commit: DriverCommit, error: CkptError) -> None:
        """Handle a refused commit.

        - A standby keeps looking.
        - A driver that lost the job, or does not get it, ends.
        - A commit that the store did not perform is tried again.
        """
        if commit.what == "begin" and node.standby is not None and not node.incarnation:
            self._handle(node, TakeoverLost())
        # the last renewal of a stopped keeper is not tried again: the process ends
        elif isinstance(error, Fenced | StoreInUse) or (commit.what == "renew" and node.renew_ms is None):
            self._end(node)
        elif commit.what == "renew":
            node.missed(self.now)
        else:
            # first again: the lease is not returned before the last epoch
            node.todo.insert(0, commit)

    def _end(self, node: DriverNode) -> None:
        """End the process in order. A later step starts it again."""
        self.tell(node.name, "ends", f"incarnation {node.incarnation}")
        self._dies(node)

    def _do_decide(self, name: str) -> None:
        node = self.nodes[name]
        node.todo.append(DriverCommit("decide", node.incarnation))

    def _do_stop(self, name: str) -> None:
        self._leave(self.nodes[name])

    def _leave(self, node: DriverNode) -> None:
        """Commit a last epoch, then return the lease. The keeper may be about to renew."""
        node.ends = True
        node.todo += [DriverCommit("decide", node.incarnation), DriverCommit("leave", node.incarnation)]

    def _do_fail(self, name: str) -> None:
        """End the incarnation but not the job: the lease stays, without renewals until the next incarnation begins."""
        node = self.nodes[name]
        node.ends = True
        self._close_keeper(node)
        node.todo.append(DriverCommit("keep", node.incarnation))

    def _do_ask(self) -> None:
        self.observer.ask_handover(self.observer.state().incarnation)

    def _do_late(self, number: int) -> None:
        late = self.late.pop(number)
        try:
            self._appended(late.commit, late.log, late.holder, self.nodes[late.holder.name])
        except CkptError as error:
            self.tell(late.holder.name, "comes to nothing", error.condition)

    # -- what goes wrong, and time -----------------------------------------------------------------------------------

    def _do_crash(self, name: str) -> None:
        node = self.nodes[name]
        if node.under_way is not None:
            # a dead process does not retry a lost commit
            node.view.acts = False
            self.late.append(LateWrite(node.under_way, node.log, node.holder))
        self._dies(node)

    def _dies(self, node: DriverNode) -> None:
        self.outside.since = replace(self.outside.since, death=self.now)
        node.die()

    def _do_pause(self, name: str) -> None:
        self.nodes[name].paused = True

    def _do_wake(self, name: str) -> None:
        self.nodes[name].paused = False
        self._is_able_again(self.nodes[name])

    def _do_cut(self, name: str) -> None:
        self.nodes[name].cut = True
        self._reaches()

    def _do_heal(self, name: str) -> None:
        self.nodes[name].cut = False
        self._reaches()
        self._is_able_again(self.nodes[name])

    def _is_able_again(self, node: DriverNode) -> None:
        node.able_since = node.awake_since = self.now

    def _do_jump(self, name: str, ms: int) -> None:
        self.nodes[name].wall_ms += ms
        self.nodes[name].set_ms += ms

    def _do_away(self) -> None:
        self.outside.away = True
        self._reaches()

    def _do_back(self) -> None:
        self.outside.away = False
        self.outside.since = replace(self.outside.since, back=self.now)
        self._reaches()
        for node in self.nodes.values():
            # not `awake_since`: an outage silences all hosts, and none of them by a fault of its own
            node.able_since = self.now

    def _reaches(self) -> None:
        for node in self.nodes.values():
            node.view.reaches = not (node.cut or self.outside.away)

    def _do_advance(self, ms: int) -> None:
        self.outside.now += ms

    # -- the end -------------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """Wake every process and restore the store."""
        self.outside.calm = True
        for node in self.nodes.values():
            if node.paused:
                self._do_wake(node.name)
            if node.cut:
                self._do_heal(node.name)
        if self.outside.away:
            self._do_back()

    def judge(self) -> None:
        """Judge the end: the log is consistent, and a driver leads the job."""
        log_state = self.observer.state()
        contradiction = log_state.contradiction()
        if contradiction or not self.outside.decided:
            raise NoEnd(contradiction or "no driver commits epochs any more")

    def names(self) -> Sequence[str]:
        """Return the hosts."""
        return tuple(self.nodes)

    def counts(self) -> dict[str, int]:
        """Return the number of choices of each kind, and of incarnations."""
        return dict(self.counter) | {"incarnations": self.outside.ledger.newest}
