"""The world of an operator of a job on Spark: restores epochs, replaces endpoints, follows recovery advice.

Rows and logs are lost too. The rules are the shipped ones: choice of the epoch, endpoints, unpublished epochs,
publication, recovery advice. The operator knows only the errors: a final error has to name a next step, and that step
has to work. The truth is kept apart (`OperatedTruth`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

from checkpoint_lab.operated_driver import (
    SINKS,
    SOURCE,
    OperatedDriver,
    OperatedStore,
    OperatedTruth,
    SinkTarget,
    Start,
    merged,
    operated_shape,
)
from checkpoint_lab.spark_store import JOB, Backup
from checkpoint_lab.violations import ensure
from checkpoint_lab.world import Choice, World
from checkpoint_protocols.ids import Incarnation
from spark_ckpt.connector import PublishedEpoch, Sink, SinkContext
from spark_ckpt.connector_parts.sink_rules import SinkMarker
from spark_ckpt.coordination.messages import Outcome
from spark_ckpt.endpoints.markers import sinks_taken_back
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.epochs.restore import LATEST, RestoreTarget
from spark_ckpt.epochs.retention import Retention, kept_epochs
from spark_ckpt.epochs.sinks_ahead import beyond, refusal
from spark_ckpt.errors import CkptError, EpochDamaged, IdentityChanged, PublishConflict, StoreOutage
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.store import Store


@dataclass(frozen=True, slots=True)
class Length:
    """Length of a job: rows of every topic, number of faults, and length of its schedules in usual ones.

    Deaths, damage and the operator's own ideas count as faults.
    """

    rows: int
    faults: int
    stretch: int


SHORT, LONG = Length(12, 20, 1), Length(30, 60, 2)
"""Some bugs need many epochs and several branches."""
OBEYED_MAX = 8
"""Maximal number of followed steps in a row without a begun driver: an operator must not go round in circles."""
_WAY = re.compile(r"job\.start\(([^)]*)\)")
_RESTORE = re.compile(r"restore=(\d+)")
_ACCEPTED = re.compile(r"accept-loss STORE --epoch (\d+) --incarnation (\d+)")
_DECLARED = re.compile(r"declare (\w+) (\d+)")
_CONFIRMED = re.compile(r"accept_(new_sink|new_source|lost_rows)=(\[.*?\]|'\w+')")


class NamedTarget(NamedTuple):
    """A sink of the job, as a start names it."""

    name: str
    sink: Sink


@dataclass(frozen=True)
class OpenStore:
    """The parts of a store that a start asks for the sinks."""

    log: EpochLog
    shared: OperatedStore
    job: str = JOB
    id: str = "store"

    def verify_for(self, _taken_back: Mapping[str, int]) -> Callable[[Manifest], None]:
        """Return the check of an epoch's files."""
        return self.shared.verify


class OperatedWorld(World):
    """`patient`: sinks with `publish_every`. `troubles`: kinds of faults that happen; empty for all."""

    LAGGARDS = ("", "publish", "batch", "timer")
    FLEETING = frozenset({"publish fail", "publish silent", "damage due"})

    def __init__(self, patient: tuple[str, ...] = (), troubles: tuple[str, ...] = (), length: Length = SHORT) -> None:
        self.troubles, self.rows, self.stretch = troubles, length.rows, length.stretch
        self.shape = operated_shape(patient)
        self.store = OperatedStore()
        self.topic = "a-1"
        self.targets = {sink: SinkTarget(sink, f"{sink}-1") for sink in SINKS}
        self.truth = OperatedTruth(self.store, {sink: [target] for sink, target in self.targets.items()})
        self.driver: OperatedDriver | None = None
        self.start = Start()
        self.error: CkptError | None = None
        """The error that the operator has to act on."""
        self.whim = False
        """True if the next start is the operator's own idea, which the rules may refuse."""
        self.asked: RestoreTarget | None = None
        """The epoch that the operator requested before it was asked to confirm something else."""
        self.obeyed = 0
        self.faults_left = length.faults
        self.accepted = False
        """True if the command that an error named has run: no sink is ahead any more."""
        self.backup: Backup | None = None
        self.made = 1
        """Number of topics and targets that each name has had."""
        self.counter: Counter[str] = Counter()
        self.ended = False

    # -- what can happen -----------------------------------------------------------------------------------------------

    def choices(self) -> list[Choice]:
        """Return all choices except faults and timers."""
        driver = self.driver
        if driver is None:
            return self._operator()
        found: list[Choice] = [("publish", sink, "ok") for sink, waiting in driver.waiting.items() if waiting]
        if driver.news:
            found += [("batch", most) for most in (1, 2)]
        # without faults, `drain_choices` takes a timer only when nothing else is left
        return [*found, *(self.timers() if self.faults_left else [])]

    def _operator(self) -> list[Choice]:
        if self.ended:
            return []
        if self.error is None:
            return [("begin",)]
        # by the words of the error, since the operator knows nothing else
        ways: list[Choice] = [("obey", number) for number in range(len(_WAY.findall(self.error.hint)))]
        hint = self.error.hint
        if "bring the file back" in hint:
            ways.append(("repair",))
        if "correct the" in hint or "so that they are published" in hint:
            ways.append(("correct",))
        if "bring back what the sink had" in hint:
            ways.append(("bring back",))
        if _DECLARED.search(hint):
            ways.append(("declare",))
        if "accept-loss" in hint:
            ways += [("accept", back, how) for back in (True, False) for how in ("at once", "one by one")]
        ensure(bool(ways), "O10", f"no way on is named: {self.error}")
        return ways

    def timers(self) -> list[Choice]:
        """Return the driver's earliest timer."""
        return [("timer",)] if self.driver and self.driver.timers else []

    def faults(self) -> list[Choice]:
        """Return deaths, refusals, damage, and the operator's own ideas."""
        # while an error's advice is followed, no fault interferes
        if not self.faults_left or (self.driver is None and (self.obeyed or self.error)):
            return []
        found: list[Choice] = [("back up",), ("sweep",)] if self.store.rows else []
        found += [("damage", number) for number in range(len(self._precious()))]
        found += [("replace", name) for name in (SOURCE, *SINKS)]
        if "forget" in self.troubles:
            found += [("forget", upto) for upto in self._losses()]
        if "take back" in self.troubles:
            found += [("take back", sink, at) for sink in SINKS for at in self._versions_of(sink)]
        if self.driver is not None:
            waiting = [sink for sink, outputs in self.driver.waiting.items() if outputs]
            found += [("damage due", sink) for sink in waiting if self.driver.waiting[sink][0].files]
            found += [("publish", sink, how) for sink in waiting for how in ("fail", "silent")]
            found += [("crash",), ("store", "fail"), ("store", "silent")]
        if self.error is None and self.store.rows:
            found += [("restore", epoch) for epoch in self._epochs()]
        if self.backup is not None and self.error is None:
            found.append(("lose",))
        return [each for each in found if not self.troubles or each[0] in self.troubles]

    def fault_of(self, choice: Choice) -> str:
        """Return the kind of a fault, with the way in which it fails."""
        return f"{choice[0]} {choice[-1]}" if choice[-1] in ("fail", "silent") else str(choice[0])

    def _epochs(self) -> list[int]:
        return [0, *sorted(self.store.look().state().by_id)]

    def _losses(self) -> set[int]:
        """Return numbers of rows that may become the oldest ones: one and three behind the newest epoch's position."""
        newest = self.store.by_number.get(self.store.look().state().latest) if self.store.rows else None
        read = newest.cursor.number if newest and newest.cursor.topic == self.topic else 0
        return {upto for upto in (read + 1, read + 3) if self.store.oldest[self.topic] < upto <= self.rows}

    def _versions_of(self, sink: str) -> set[int]:
        """Return the versions of a sink's table that an operator may restore: the first and the last but one."""
        # a table with one version has no last but one
        return {0, len(self.targets[sink].versions) - 2} - {-1}

    def _precious(self) -> list[str]:
        """Return the staged files whose loss would lose rows."""
        return sorted(self.store.due_files() - self.store.gone) if self.store.rows else []

    # -- making it happen ----------------------------------------------------------------------------------------------

    def do(self, choice: Choice) -> None:
        """Perform the choice: call the method of its kind."""
        if choice[0] in _FAULTS or choice[-1] in ("fail", "silent"):
            self.faults_left -= 1
        self.counter[str(choice[0])] += 1
        self.act(choice)
        self._collect_end()
        self.truth.judge()

    def _do_begin(self) -> None:
        rows = len(self.store.rows)
        try:
            self._refuse_newer_sinks()
            lost = self._taken_back()
            driver = OperatedDriver(self.store, self.shape, self.start, self.topic, self.targets, self.rows, lost)
        except CkptError as error:
            self._refused(error, rows)
            return
        self.tell(
            "driver", "recover", f"incarnation {driver.point.incarnation} from epoch {driver.point.manifest.epoch}"
        )
        asked, self.asked = self.asked, None
        at = driver.point.manifest.epoch
        ensure(
            # advice that confirms an endpoint must still restore the requested epoch
            asked in (None, at),
            "O10",
            f"an operator who asked for epoch {asked} and confirmed the named changes is at epoch {at}",
        )
        if self.start.chosen:
            self.truth.gone_back(driver.point.manifest.epoch)
        if driver.fresh:
            self.truth.begun_again(self.topic, driver.point.manifest.epoch)
        self.driver, self.start, self.error, self.whim = driver, Start(), None, False
        # A driver that ends at once has not begun: its error may name the step that was just followed.
        self.obeyed = self.obeyed if driver.ending else 0
        for target in self.targets.values():
            target.backup = None

    def _refused(self, error: CkptError, rows: int) -> None:
        """O10: the rules accept a step that an error names, unless more than one thing changed.

        They may refuse the operator's idea.
        """
        if error.retriable:
            return
        # a refused start must not change the log
        ensure(len(self.store.rows) == rows, "O5", f"a start is refused and has changed the log: {error}")
        self.tell("driver", "failed", str(error).partition("\n")[0])
        if self.whim and not isinstance(error, IdentityChanged | PublishConflict):
            self.start, self.whim, self.error = Start(), False, None
            return
        known = isinstance(error, IdentityChanged) or "accept-loss" in error.hint or not self.start.chosen or self.whim
        ensure(known, "O10", f"the way on that was named is refused: {error}")
        self.error = error

    def _refuse_newer_sinks(self) -> None:
        """Refuse sinks that are ahead of the log, as the driver does before it commits."""
        if (error := refusal(self._markers(), self.store.log().state(), "STORE")) is not None:
            ensure(not self.accepted, "O10", f"what was named is accepted, and is not enough: {error}")
            raise error

    def _taken_back(self) -> dict[str, int]:
        """Compare the markers with what the sinks have published, as a start by a user does."""
        bindings = [NamedTarget(name, cast(Sink, target)) for name, target in self.targets.items()]
        store = cast(Store, OpenStore(self.store.log(), self.store))  # it has what is asked of a store
        return sinks_taken_back(bindings, store, self.start.restore, self.start.confirmed)

    def _markers(self) -> dict[str, PublishedEpoch]:
        context = SinkContext(JOB, "", "store", Incarnation(0))
        found = {sink: target.newest_published(context) for sink, target in self.targets.items()}
        return {sink: marker for sink, marker in found.items() if marker is not None}

    def _do_obey(self, number: int) -> None:
        assert self.error is not None  # noqa: S101 - else the choice does not exist
        way = _WAY.findall(self.error.hint)[number]
        self.obeyed += 1
        ensure(self.obeyed <= OBEYED_MAX, "O10", f"the operator goes round in circles: {self.error}")
        restore = _RESTORE.search(way)
        names = {kind: frozenset(re.findall(r"\w+", given)) for kind, given in _CONFIRMED.findall(way)}
        to = int(restore[1]) if restore else LATEST
        older = self.start.chosen and self.start.restore != self.store.log().state().latest
        self.asked = self.start.restore if older and names and not restore else None
        if (
            restore
            and isinstance(self.error, EpochDamaged)
            and (self.error.damaged_file or "restore" in self.error.context)
        ):
            self._judge_plan(int(restore[1]))
        self.tell("operator", "recover", f"obeys: job.start({way})")
        self.whim = self.whim and to == self.start.restore
        self.start, self.error = merged(self.start, to, names), None

    def _judge_plan(self, back: int) -> None:
        """O6: the error named every other sink that shows rows which will be repeated."""
        assert self.error is not None  # noqa: S101 - as above
        newest = self.store.log().state().latest
        told = str(self.error.context.get("would be repeated"))
        for sink in SINKS:
            if sink != self.error.context.get("sink") and self.truth.shows_behind(sink, newest, back):
                ensure(
                    f"{sink} has" in told or f"{sink} may have" in told, "O6", f"{sink} shows what comes again: {told}"
                )

    def _do_repair(self) -> None:
        self.store.gone.clear()
        self.error, self.start, self.whim = None, Start(), False

    def _do_correct(self) -> None:
        """Point source and sinks to the recorded endpoints that the error names."""
        assert self.error is not None  # noqa: S101 - else the choice does not exist
        log = self.store.log()
        recorded = [str(text).split()[-1] for name, text in self.error.context.items() if name.endswith("recorded")]
        if not recorded:  # a sink that cannot be replaced yet
            recorded = [each.parts["table"] for each in log.manifest(max(log.state().by_id)).sink_identities.values()]
        for identity in recorded:
            if identity.startswith(SOURCE):
                self.topic = identity
            for sink in SINKS:
                known = {each.identity: each for each in self.truth.targets[sink]}
                self.targets[sink] = known.get(identity, self.targets[sink])
        # an older table may be ahead of a log whose loss was accepted with another one in its place
        self.error, self.accepted = None, False
        self.start = replace(self.start, confirmed=Start().confirmed)

    def _do_accept(self, back: bool, how: str) -> None:
        """O10: accept the epochs that sinks have after the log's end, all at once or sink by sink.

        Their rows are removed (`back`) or will be repeated.
        """
        self.store.mood = "ok"
        log = self.store.log()
        # the command is refused as long as a driver may hold the lease
        self.store.later()
        if how == "at once":
            assert self.error is not None  # noqa: S101 - else the choice does not exist
            log.accept_loss(*map(int, _ACCEPTED.findall(self.error.hint)[0]))
            self.accepted = True
        else:
            for marker in self._markers().values():
                if beyond(marker, log.state()):
                    log.accept_loss(marker.epoch, marker.incarnation)
        if back:
            kept = self.truth.attempts_of(log.state().latest)
            for target in self.targets.values():
                target.shown = [(row, attempt) for row, attempt in target.shown if attempt in kept]
        else:
            self.truth.gone_back(log.state().latest)
        self.error, self.start, self.whim = None, Start(), False

    def _do_batch(self, most: int) -> None:
        assert self.driver is not None  # noqa: S101 - else the choice does not exist
        self.driver.run_batch(most)

    def _do_publish(self, sink: str, how: str) -> None:
        assert self.driver is not None  # noqa: S101 - as above
        self.tell(sink, "publish", f"epoch {self.driver.waiting[sink][0].epoch}: {how}")
        self.driver.publish(sink, how)

    def _do_timer(self) -> None:
        assert self.driver is not None  # noqa: S101 - as above
        self.driver.run_out()

    def _do_stop(self) -> None:
        assert self.driver is not None  # noqa: S101 - as above
        self.driver.stop()

    def _do_crash(self) -> None:
        self.tell("driver", "crash")
        self.driver = None

    def _do_store(self, how: str) -> None:
        self.store.mood = how

    def _do_damage(self, number: int) -> None:
        path = self._precious()[number]
        self.tell("log", "failed", f"{path} is damaged")
        self.store.gone.add(path)

    def _do_damage_due(self, sink: str) -> None:
        assert self.driver is not None  # noqa: S101 - else the choice does not exist
        self.store.gone.add(self.driver.waiting[sink][0].files[0].path)

    def _do_replace(self, name: str) -> None:
        """Replace a source or sink by another one of the same name; its driver is dead."""
        self.driver, self.made = None, self.made + 1
        if name == SOURCE:
            self.topic = f"{SOURCE}-{self.made}"
        else:
            self.targets[name].bring_back()  # no start could have noticed what it has lost
            self.targets[name] = SinkTarget(name, f"{name}-{self.made}")
            self.truth.targets[name].append(self.targets[name])
        self.tell("operator", "failed", f"{name} is another one")

    def _do_forget(self, upto: int) -> None:
        """Retention deletes the rows of the topic before `upto`; the driver is dead."""
        self.driver, self.store.oldest[self.topic] = None, upto
        self.tell("operator", "failed", f"{self.topic} begins at {upto}")

    def _do_take_back(self, sink: str, number: int) -> None:
        """Restore an older version of a sink's table; the driver is dead."""
        self.driver = None
        self.targets[sink].take_back(number)
        self.tell("operator", "failed", f"{sink} is that of a backup")

    def _do_bring_back(self) -> None:
        for target in self.targets.values():
            target.bring_back()
        self.error, self.start, self.whim = None, Start(), False

    def _do_declare(self) -> None:
        """Declare that sinks have what they have lost."""
        assert self.error is not None  # noqa: S101 - else the choice does not exist
        for sink, epoch in _DECLARED.findall(self.error.hint):
            self.targets[sink].marker = SinkMarker(int(epoch), self.store.log().state().incarnation)
            self.truth.declared(sink, int(epoch))
        self.error, self.start, self.whim = None, Start(), False

    def _do_restore(self, epoch: int) -> None:
        if self.driver is not None:
            with suppress(StoreOutage):
                self.driver.leave()
        self.driver, self.start, self.whim = None, Start(epoch), True
        self.tell("operator", "recover", f"wants epoch {epoch}")

    def _do_back_up(self) -> None:
        self.backup = self.store.back_up()

    def _do_lose(self) -> None:
        """Replace the log by a backup of it."""
        assert self.backup is not None  # noqa: S101 - else the choice does not exist
        self.driver, self.accepted = None, False
        self.store.restored(self.backup)
        self.tell("log", "failed", "is that of a backup")

    def _do_sweep(self) -> None:
        with suppress(StoreOutage):
            self.store.log().shorten(lambda log_state: kept_epochs(log_state, Retention(keep_last=2, slack=0), 2))

    def _collect_end(self) -> None:
        driver = self.driver
        if driver is None or driver.ending is None:
            return
        ending, self.driver = driver.ending, None
        if ending.error is None or not ending.error.retriable:
            with suppress(StoreOutage):
                driver.leave()
        if ending.error is not None and not ending.error.retriable:
            self.error, self.start = ending.error, Start()
            self.tell("driver", "failed", str(ending.error).partition("\n")[0])
        self.ended = self.faults_left == 0 and ending.error is None and ending.outcome is Outcome.STOPPED

    # -- the end -------------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """End all faults."""
        self.faults_left = 0
        self.store.mood = "ok"

    def drain_choices(self) -> list[Choice]:
        """Return work, then a stop once everything is read, then timers."""
        driver = self.driver
        if driver is not None and not driver.stopping and driver.cursor.number == self.rows:
            return [("stop",)]
        return self.choices() or self.timers()

    def judge(self) -> None:
        """O2, O10: the job ends, and its sinks show everything that it has read."""
        ensure(self.ended, "O10", "the job has not stopped")
        self.truth.judge_end(self.store.log().state().latest)

    def names(self) -> list[str]:
        """Return the names of the columns of a story."""
        return ["operator", "driver", "log", *SINKS]

    def mortal(self) -> list[str]:
        """Return the driver: no other process exists here."""
        return ["driver"]

    def crash_of(self, process: str) -> Choice:
        """Return the crash of the driver."""
        return ("crash",)


_FAULTS = frozenset(
    {"crash", "store", "damage", "damage due", "replace", "restore", "back up", "lose", "sweep", "take back", "forget"}
)
