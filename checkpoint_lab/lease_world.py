"""The world of the checkpoint lease: a replicated log, nodes with clocks of different rates, links, a store.

The log is an abstraction of consensus: an append by the primary with a quorum is chosen at once, and `LeaseRules` decides
which node may be elected. Time is exact and passes only by choices. Only paused nodes and messages under way (reports,
appends, uploads, answers) can be late; each takes as long as the schedule draws.

Choices:

- work: `elect n`, `depose n`, `report n`, `hear n`, `tick n pick`, `append n`, `command n`, `propagate from to`,
  `execute n`, `start n`, `write n`, `land n token`, `answer n token`, `recover n`
- clocks: `elapse n`, `advance ms`
- faults: `crash n`, `pause n`, `wake n`, `cut a b`, `heal a b`, `fail n`
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from math import lcm

from checkpoint_lab.faults import Faults
from checkpoint_lab.lease_node import (
    Answer,
    LeaseEntry,
    Node,
    Upload,
    judge_logs,
    judge_publish,
    judge_rights,
    judge_step,
    judge_turns,
)
from checkpoint_lab.violations import NoEnd
from checkpoint_lab.world import Choice, World
from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.lease.messages import (
    Admission,
    AppendLease,
    CheckpointFailed,
    CheckpointStarted,
    CheckpointWritten,
    Deposed,
    Elected,
    EntryExecuted,
    HealthReport,
    HealthReported,
    Lease,
    LeaseChosen,
    LeasedCheckpoint,
    LeaseElapsed,
    LeaseSettings,
    PublishAnswered,
    PublishCheckpoint,
    RecordPayload,
    Terms,
    Ticked,
    admission,
)
from checkpoint_protocols.lease.primary import Primary
from checkpoint_protocols.lease.replica import Replica, ReplicaPhase
from checkpoint_protocols.lease.rotation import DRAWS
from checkpoint_protocols.machine import Drop, Effect, Event
from checkpoint_protocols.vocabulary import Note, SetTimer

# -- Pictures of the lease world for exhaustive exploration: two worlds with equal pictures behave alike.
#
# Clock readings count by their distance from now, and not at all beyond every deadline. Readings of an ended incarnation
# do not count. Estimates are left out if lease times are fixed (`least_ms == most_ms`).


def picture_of(world: LeaseWorld) -> Hashable:
    """Return the picture of the whole world."""
    view = _View(world)
    return (
        tuple(view.node(node) for node in world.nodes.values()),
        tuple((view.terms(entry.terms), entry.author) for entry in world.log),
        world.leader,
        frozenset(world.cuts),
        tuple(world.uploads and map(repr, world.uploads)),
        tuple(world.answers),
        world.store.token,
        world.store.applied,
        tuple(world.passed.values()),
        tuple(world.budget.values()),
        None if world.unpublished is None else frozenset(world.unpublished),
    )


class _View:
    """Pictures of the world's parts, with distances from now."""

    def __init__(self, world: LeaseWorld) -> None:
        settings = world.scope.settings
        self.world = world
        self.fixed = settings.least_ms == settings.most_ms
        self.far = settings.most_ms + settings.fresh_ms + 2

    def ago(self, node: Node, local_ms: int) -> int:
        """Return the distance of a reading of the node's current clock from now."""
        return max(local_ms - node.local(self.world.now), -self.far)

    def reading(self, name: str, boot: int, local_ms: int) -> int | None:
        """Return the distance of a reading of an incarnation's clock; None if that incarnation is over."""
        node = next(node for node in self.world.nodes.values() if node.name == name)
        same = node.boot == boot or not self.world.rules.clocks_reset
        return self.ago(node, local_ms) if node.up and same else None

    def terms(self, terms: Terms | None) -> Hashable:
        if terms is None:
            return None
        left = self.reading(terms.holder, terms.boot, terms.until_ms)
        return (terms.holder, terms.boot, terms.ttl_ms, None if left is None else max(left, -1))

    def lease(self, lease: Lease | None) -> Hashable:
        return None if lease is None else (lease.token, self.terms(lease.terms))

    def report(self, report: HealthReport) -> Hashable:
        return (report.node, report.boot, self.reading(report.node, report.boot, report.clock_ms), report.payload)

    def node(self, node: Node) -> Hashable:
        if not node.up or node.replica is None:
            return (tuple(sorted(node.log)), node.payload, node.boot, node.rate)
        replica, now = node.replica, self.world.now
        return (
            tuple(sorted(node.log)),
            node.payload,
            node.boot,
            node.paused,
            node.phase_of_clock(now),
            replica.phase,
            replica.applied,
            self.lease(replica.lease),
            self.lease(replica._right),
            tuple(turn for turn in replica.turns.items()),
            None if node.due is None else (max(node.due - now, -1), node.due_token),
            self.terms(node.outbox),
            tuple(map(self.report, node.reports)),
            None if node.primary is None else (node.term, self.primary(node, node.primary)),
        )

    def heard(self, node: Node, report: HealthReport, at: int) -> Hashable:
        """Return the picture of a heard report; one that is too old for a candidate counts by its incarnation only."""
        ago = self.ago(node, at)
        fresh = ago >= -self.world.scope.settings.fresh_ms
        return (self.report(report), ago) if fresh else (report.node, report.boot)

    def primary(self, node: Node, primary: Primary) -> Hashable:
        heard = [self.heard(node, report, at) for report, at in primary.heard.values()]
        since = primary._counted_from
        estimates = None if self.fixed else tuple(sorted(primary._estimates.items()))
        return (
            primary.phase,
            self.lease(primary.lease),
            None if primary.lease is None else max(self.ago(node, primary.deadline_ms), -1),
            self.terms(primary.asked),
            tuple(sorted(heard, key=str)),
            estimates,
            None if since is None or self.fixed else self.ago(node, since),
        )


@dataclass(frozen=True)
class LeaseRules:
    """The machines and assumptions that a test can replace by wrong ones."""

    replica: type[Replica] = Replica
    primary: type[Primary] = Primary
    admission: Callable[[int, int], Admission] = admission
    executed: bool = True
    """True if a primary must have executed every chosen entry. False: possessing them is enough."""
    clocks_reset: bool = True
    """True if a node's clock restarts with each boot."""


@dataclass(frozen=True)
class Scope:
    """Size of the world. `rates` in percent of time, `health` in percent, by node."""

    rates: Mapping[str, int] = field(default_factory=lambda: {"a": 100, "b": 100, "c": 100})
    health: Mapping[str, int] = field(default_factory=dict)
    settings: LeaseSettings = field(
        default_factory=lambda: LeaseSettings(
            least_ms=10, first_ms=20, most_ms=80, margin_ms=2, fresh_ms=15, rounds=2, alert_after=2
        )
    )
    leases: int | None = None
    """Number of leases issued before the calm; None: no bound."""
    commands: int = 2
    """Number of log entries without a lease before the calm."""
    advances: tuple[int, ...] = (4, 1, 15)
    """Steps of time, in milliseconds."""


class LeaseWorld(World):
    """Nodes, their log, their clocks, and the store of checkpoints."""

    FLEETING = frozenset({"fail"})

    def __init__(
        self, scope: Scope | None = None, faults: Faults | None = None, rules: LeaseRules | None = None
    ) -> None:
        self.scope, self.rules = scope or Scope(), rules or LeaseRules()
        faults = faults or Faults()
        self.budget = {"crash": faults.crashes, "pause": faults.pauses, "cut": faults.partitions}
        self.budget |= {"fail": faults.store_errors, "command": self.scope.commands}
        unit = lcm(*self.scope.rates.values())
        self.now = 0
        self.nodes = {
            ProcessId(name): Node(ProcessId(name), rate, self.scope.health.get(name, 100), unit)
            for name, rate in self.scope.rates.items()
        }
        self.unit = unit
        self.log: list[LeaseEntry] = []
        self.leader: ProcessId | None = None
        self.terms = 0
        self.cuts: set[tuple[ProcessId, ProcessId]] = set()
        self.uploads: list[Upload] = []
        self.answers: list[Answer] = []
        self.store = LeasedCheckpoint()
        self.published: list[int] = []
        self.passed = dict.fromkeys(self.nodes, 0)
        self.unpublished: set[ProcessId] | None = None
        """After the calm: nodes that have not published since."""
        self.counter: Counter[str] = Counter()
        for node in self.nodes.values():
            self._boot(node)

    # -- what can happen -----------------------------------------------------------------------------------------

    def choices(self) -> Sequence[Choice]:
        """Return work: elections, heartbeats, the log, checkpoints."""
        found: list[Choice] = []
        for node in self.nodes.values():
            if node.awake:
                found += self._of_replica(node)
                found += self._of_primary(node)
            elif not node.up:
                found.append(("recover", node.name))
        found += [("land", upload.node, upload.checkpoint.token) for upload in self.uploads]
        found += [("answer", answer.node, answer.token) for answer in self.answers if self._can_hear(answer)]
        found += [("propagate", *pair) for pair in permutations(self.nodes, 2) if self._lacks(*pair)]
        return found

    def timers(self) -> Sequence[Choice]:
        """Return steps of time, never past a timer of a node that is awake, and the timer that expires first."""
        dues = [(node.due, node.name) for node in self.nodes.values() if node.awake and node.due is not None]
        first = min(dues, default=None)
        elapse: list[Choice] = [("elapse", name) for due, name in dues if first and due == first[0]]
        latest = [ms for ms in self.scope.advances if first is None or self.now + ms * self.unit <= first[0]]
        return [*(("advance", ms) for ms in latest), *elapse]

    def faults(self) -> Sequence[Choice]:
        """Return the faults that are possible next, and their ends."""
        found: list[Choice] = []
        for node in self.nodes.values():
            found += [(kind, node.name) for kind in ("crash", "pause") if node.awake and self.budget[kind]]
            found += [("wake", node.name)] if node.paused else []
            found += (
                [("fail", node.name)]
                if node.awake and node.stands_in(ReplicaPhase.TAKING) and self.budget["fail"]
                else []
            )
        for pair in permutations(self.nodes, 2):
            if pair in self.cuts:
                found.append(("heal", *pair))
            elif self.budget["cut"]:
                found.append(("cut", *pair))
        return found

    def drain_choices(self) -> Sequence[Choice]:
        """Return work, and time without any, until every secondary has published since the calm."""
        if self.unpublished is not None and not self.unpublished - {self.leader} and self.leader is not None:
            return []
        return [choice for choice in self.choices() if choice[0] != "command"] or self.timers()

    def _of_replica(self, node: Node) -> Iterator[Choice]:
        replica = _replica(node)
        if replica.executes and replica.applied + 1 in node.log:
            yield "execute", node.name
        if replica.phase is ReplicaPhase.GRANTED:
            yield "start", node.name
        if replica.phase is ReplicaPhase.TAKING:
            yield "write", node.name
        if self._may_lead(node):
            yield "elect", node.name
        if self._has_news(node):
            yield "report", node.name
        if node.reports and self.leader not in (None, node.name) and self._connected(node.name, self._leader()):
            yield "hear", node.name

    def _of_primary(self, node: Node) -> Iterator[Choice]:
        primary = node.primary
        if primary is None:
            return
        if self.leader != node.name:
            yield "depose", node.name
        elif self._has_quorum(node.name):
            if node.outbox is not None:
                yield "append", node.name
            if self.budget["command"]:
                yield "command", node.name
        if self.unpublished is not None or self._leases_left():
            yield from (("tick", node.name, pick) for pick in self._picks(primary, node.local(self.now)))

    def _leases_left(self) -> bool:
        issued = sum(entry.terms is not None for entry in self.log)
        return self.scope.leases is None or issued < self.scope.leases

    def _picks(self, primary: Primary, local_ms: int) -> list[str]:
        """Return every node that some draw would pick; an empty name if the tick only ends a lease."""
        if not primary.is_due(local_ms):
            return []
        return [name for name, weight in primary.weights(local_ms).items() if weight] or [""]

    # -- the abstraction of consensus ----------------------------------------------------------------------------

    def _may_lead(self, node: Node) -> bool:
        """Return True if the current primary cannot work and this node has executed every chosen entry."""
        if node.primary is not None or not _replica(node).executes:
            return False
        if self.leader is not None and self._has_quorum(self.leader):
            return False
        # a planted rule may accept a primary that only possesses the entries
        has_all = (_replica(node).applied if self.rules.executed else len(node.log)) == len(self.log)
        return has_all and self._has_quorum(node.name)

    def _has_quorum(self, name: ProcessId) -> bool:
        if not self.nodes[name].awake:
            return False
        # A round of consensus needs both directions of a link, a heartbeat only one (`_connected`).
        cut = {other for pair in self.cuts if name in pair for other in pair} - {name}
        return 2 * sum(node.awake and other not in cut for other, node in self.nodes.items()) > len(self.nodes)

    def _connected(self, source: ProcessId, target: ProcessId) -> bool:
        """Return True if a message from `source` reaches `target`."""
        return self.nodes[source].awake and self.nodes[target].awake and (source, target) not in self.cuts

    def _lacks(self, source: ProcessId, target: ProcessId) -> bool:
        return self._connected(source, target) and not self.nodes[source].log.keys() <= self.nodes[target].log.keys()

    def _has_news(self, node: Node) -> bool:
        """Return True if the primary has not heard this node's current report."""
        if self.leader in (None, node.name) or node.reports or not self._connected(node.name, self._leader()):
            return False
        primary = self.nodes[self._leader()].primary
        heard = primary.heard.get(node.name) if primary else None
        return heard is None or heard[0] != self._report(node)

    def _report(self, node: Node) -> HealthReport:
        return HealthReport(node.name, node.boot, node.local(self.now), node.payload, node.health)

    # an answer to an earlier incarnation is dropped, so it may arrive at any time
    def _can_hear(self, answer: Answer) -> bool:
        return self.nodes[answer.node].awake or self.nodes[answer.node].boot != answer.boot

    def _leader(self) -> ProcessId:
        assert self.leader is not None  # noqa: S101 - for the type checker; callers looked
        return self.leader

    # -- one step ------------------------------------------------------------------------------------------------

    def do(self, choice: Choice) -> None:
        """Perform the choice, then judge the new state."""
        self.counter[str(choice[0])] += 1
        self.act(choice)
        judge_rights(self.nodes, self.nodes.get(self.leader) if self.leader else None, self.log, self.now)

    def _handle(self, node: Node, event: Event) -> None:
        self.reach(_replica(node), event)
        for effect in _replica(node).handle(event):
            self._carry_out(node, effect)

    def _carry_out(self, node: Node, effect: Effect) -> None:
        match effect:
            case SetTimer(delay_ms=delay_ms, timer=token):
                node.due, node.due_token = node.when(node.local(self.now) + delay_ms), int(token)
            case PublishCheckpoint(checkpoint):
                self.uploads.append(Upload(node.name, node.boot, checkpoint))
            case RecordPayload(payload):
                node.payload = payload
                self.tell(node.name, "payload", str(payload))
            case AppendLease(terms):
                node.outbox = terms
                self.tell(node.name, "issue", terms.holder)
            case Note(what, detail):
                self.tell(node.name, what, detail)
            case Drop():
                self.counter["drop"] += 1

    # -- incarnations --------------------------------------------------------------------------------------------

    def _boot(self, node: Node) -> None:
        node.up = True
        node.boot += 1
        if self.rules.clocks_reset:
            node.born = self.now
        # a booting node has every entry that the published checkpoint covers
        for index in range(1, self.store.applied + 1):
            node.log[index] = self.log[index - 1]
        node.replica = self.rules.replica(node.name, node.boot, tuple(self.nodes), self.store)

    def _do_recover(self, name: ProcessId) -> None:
        self._boot(self.nodes[name])
        self.tell(name, "recover")

    def _do_crash(self, name: ProcessId) -> None:
        self.budget["crash"] -= 1
        self.nodes[name].die()
        if self.leader == name:
            self.leader = None
        self.tell(name, "crash")

    def _do_pause(self, name: ProcessId) -> None:
        self.budget["pause"] -= 1
        self.nodes[name].paused = True
        self.tell(name, "pause")

    def _do_wake(self, name: ProcessId) -> None:
        self.nodes[name].paused = False
        self.tell(name, "wake")

    def _do_cut(self, source: ProcessId, target: ProcessId) -> None:
        self.budget["cut"] -= 1
        self.cuts.add((source, target))

    def _do_heal(self, source: ProcessId, target: ProcessId) -> None:
        self.cuts.remove((source, target))

    # -- the primary ---------------------------------------------------------------------------------------------

    def _do_elect(self, name: ProcessId) -> None:
        node, self.leader = self.nodes[name], name
        # A term names one election: after two of them the same node must not take its older term's append for its own.
        self.terms += 1
        node.term = self.terms
        self.tell(name, "elected")
        # Elected first: its replica gives up a right of its own before the primary's machine counts from the lease (seed 002:
        # the primary never takes a checkpoint).
        self._handle(node, Elected())
        replica = _replica(node)
        node.primary = self.rules.primary(
            name, node.boot, self.scope.settings, replica.lease, replica.turns, node.local(self.now)
        )

    def _do_depose(self, name: ProcessId) -> None:
        node = self.nodes[name]
        node.primary = node.outbox = None
        self.tell(name, "deposed")
        self._handle(node, Deposed())

    def _do_report(self, name: ProcessId) -> None:
        self.nodes[name].reports.append(self._report(self.nodes[name]))

    def _do_hear(self, name: ProcessId) -> None:
        report = self.nodes[name].reports.pop(0)
        leader = self.nodes[self._leader()]
        self._lead(leader, HealthReported(report, leader.local(self.now)))

    def _do_tick(self, name: ProcessId, pick: str) -> None:
        node = self.nodes[name]
        local_ms = node.local(self.now)
        primary = _primary(node)
        draw = _draw_for(primary.weights(local_ms), pick) if pick else 0
        self._lead(node, Ticked(local_ms, draw))

    def _lead(self, node: Node, event: Event) -> None:
        self.reach(_primary(node), event)
        for effect in _primary(node).handle(event):
            self._carry_out(node, effect)

    def _do_append(self, name: ProcessId) -> None:
        node = self.nodes[name]
        terms, node.outbox = node.outbox, None
        assert terms is not None  # noqa: S101 - for the type checker; it is a choice only then
        candidates = _primary(node).candidates(node.local(self.now))
        self._choose(LeaseEntry(terms, (name, node.term)))
        self.passed |= {other: self.passed[other] + 1 for other in candidates}
        # every candidate that was not picked waits one turn longer
        self.passed[terms.holder] = 0
        judge_turns(self.passed, self.scope.settings)

    def _do_command(self, name: ProcessId) -> None:
        self.budget["command"] -= 1
        self._choose(LeaseEntry(None, (name, self.nodes[name].term)))

    def _choose(self, entry: LeaseEntry) -> None:
        """Choose an entry: every node that the primary reaches gets it, which is a quorum."""
        self.log.append(entry)
        for other in self.nodes:
            if self._connected(self._leader(), other):
                self.nodes[other].log[len(self.log)] = entry
        self.tell(self._leader(), "chosen", str(len(self.log)))

    # -- the log and the work ------------------------------------------------------------------------------------

    def _do_propagate(self, source: ProcessId, target: ProcessId) -> None:
        self.nodes[target].log |= self.nodes[source].log
        judge_logs(self.nodes, self.log)

    def _do_execute(self, name: ProcessId) -> None:
        node = self.nodes[name]
        index, local_ms = _replica(node).applied + 1, node.local(self.now)
        entry = node.log[index]
        self._handle(node, EntryExecuted(index, entry.terms, local_ms))
        if _replica(node).may_take:
            self.tell(name, "granted", str(index))
        # only the author in the same term knows that it waits for this lease
        mine = node.primary is not None and entry.author == (name, node.term)
        if mine and entry.terms is not None:
            self._lead(node, LeaseChosen(Lease(index, entry.terms), local_ms))

    def _do_start(self, name: ProcessId) -> None:
        node = self.nodes[name]
        self._handle(node, CheckpointStarted(node.due_token, node.local(self.now)))
        judge_step(node, self.now)
        if _replica(node).taking:
            self.tell(name, "taking", str(node.due_token))

    def _do_write(self, name: ProcessId) -> None:
        node = self.nodes[name]
        self._handle(node, CheckpointWritten(node.due_token, node.local(self.now)))
        judge_step(node, self.now)

    def _do_fail(self, name: ProcessId) -> None:
        self.budget["fail"] -= 1
        self._handle(self.nodes[name], CheckpointFailed(self.nodes[name].due_token))

    def _do_land(self, name: ProcessId, token: int) -> None:
        upload = next(each for each in self.uploads if (each.node, each.checkpoint.token) == (name, token))
        self.uploads.remove(upload)
        # An upload lands also if its node is dead or its time is over. Timers cannot stop it, only the comparison of tokens
        # can (erratum E10).
        verdict = self.rules.admission(self.store.token, upload.checkpoint.token)
        if verdict is Admission.ACCEPTED:
            self._publish(upload)
        self.tell(upload.node, verdict.name.lower(), str(upload.checkpoint.token))
        self.counter[verdict.name.lower()] += 1
        self.answers.append(Answer(upload.node, upload.boot, upload.checkpoint.token, verdict))

    def _publish(self, upload: Upload) -> None:
        judge_publish(self.published, upload.checkpoint.token, upload.node)
        self.published.append(upload.checkpoint.token)
        self.store = upload.checkpoint
        if self.unpublished is not None:
            self.unpublished.discard(upload.node)

    def _do_answer(self, name: ProcessId, token: int) -> None:
        answer = next(each for each in self.answers if (each.node, each.token) == (name, token))
        self.answers.remove(answer)
        node = self.nodes[name]
        if node.awake and node.boot == answer.boot:
            self._handle(node, PublishAnswered(answer.token, answer.admission))

    # -- clocks --------------------------------------------------------------------------------------------------

    def _do_advance(self, ms: int) -> None:
        self.now += ms * self.unit

    def _do_elapse(self, name: ProcessId) -> None:
        node = self.nodes[name]
        assert node.due is not None  # noqa: S101 - for the type checker; it is a choice only then
        self.now = max(self.now, node.due)
        node.due = None
        self._handle(node, LeaseElapsed(node.due_token))

    # -- the end -------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """Heal links and resume paused nodes. From now on every node has to publish a checkpoint."""
        self.cuts.clear()
        for node in self.nodes.values():
            node.paused = False
        self.unpublished = set(self.nodes)

    def judge(self) -> None:
        """Judge the end: every secondary has published since the calm, and the logs agree."""
        judge_logs(self.nodes, self.log)
        late = (self.unpublished or set()) - {self.leader}
        if late:
            raise NoEnd(f"{sorted(late)} never publish", sorted(late))

    def shared(self) -> tuple[object, ...]:
        """Return the scope, the rules and the lease's settings."""
        return (self.scope, self.rules, self.scope.settings)

    def picture(self) -> Hashable:
        """Return everything that determines the next choices; times as distances from now."""
        return picture_of(self)

    def names(self) -> Sequence[str]:
        """Return the nodes."""
        return tuple(self.nodes)


def _replica(node: Node) -> Replica:
    assert node.replica is not None  # noqa: S101 - for the type checker; the node is up
    return node.replica


def _primary(node: Node) -> Primary:
    assert node.primary is not None  # noqa: S101 - for the type checker; it leads
    return node.primary


def _draw_for(weights: Mapping[ProcessId, int], wanted: str) -> int:
    """Return a draw that picks `wanted`, from the middle of its share."""
    total, below = sum(weights.values()), 0
    for name, weight in weights.items():
        if name == wanted:
            # the middle, so that no rounding picks a neighbour
            return (2 * below + weight) * DRAWS // (2 * total)
        below += weight
    raise ValueError(f"{wanted} cannot be picked: {dict(weights)}")
