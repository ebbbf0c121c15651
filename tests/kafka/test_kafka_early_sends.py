"""Early sends into an open transaction, against a model of a broker's transactions: visible once, in order, and not before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from publishing_kit import ROWS, World
from spark_ckpt_kafka import publishing
from spark_ckpt_kafka.producer import ProducerFailed
from spark_ckpt_kafka.publishing import ShardPublisher, ShardRequest, ShardResult
from spark_ckpt_kafka.transaction import Transaction

from spark_ckpt import failpoints
from spark_ckpt.connector_parts.early_sends import SentEarly
from spark_ckpt.errors import CkptError, EpochDamaged
from spark_ckpt.failpoints import FailpointHit
from tests.kafka.early_commit import CommitsAtOnce

Made = Callable[..., World]
HALF = ROWS // 2
POINTS = (
    "SENDING_EARLY", "SENT_EARLY", "MARKER_READ", "MID_SEND", "OFFSETS_SENT", "FLUSHED", "PRE_COMMIT", "PUBLISH_COMMITTED",
)  # fmt: skip


def test_early_sent_rows_become_visible_with_their_epoch_and_not_before(world: Made) -> None:
    one = world()
    publisher = one.publisher()

    assert [publisher.send_early(one.in_parts(1, parts)) for parts in (1, HALF, HALF)] == [1, HALF - 1, 0]
    shown = list(one.log.committed)
    published = publisher.publish(one.in_parts(1, ROWS))

    assert shown == []
    assert published == ShardResult(ROWS, replayed=False)
    assert one.log.committed == one.expected(1)
    assert one.log.newest == 1, "one transaction, one init"
    assert len(one.log.sent) == ROWS, "no row was sent twice"


def test_the_parts_of_a_publish_exclude_early_sends(world: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every read of the clock is a second later; the time of an early send is in no part. Other threads keep their clock."""
    one, now_s = world(), map(float, range(1000))
    publisher = one.publisher(lambda: 0.0)
    publisher.send_early(one.in_parts(1, HALF))
    monkeypatch.setattr(publishing, "time", SimpleNamespace(monotonic=now_s.__next__))

    published = publisher.publish(one.in_parts(1, ROWS))
    again = publisher.publish(one.in_parts(1, ROWS))

    assert published.parts_ms == {"init": 1000, "verify": 1000, "send": 1000, "commit": 1000}
    assert again.parts_ms == {"init": 1000, "verify": 1000}


def test_nothing_is_initialised_while_rows_wait_in_an_open_transaction(world: Made) -> None:
    """An init aborts it, so neither the preparation of the next producer nor a heartbeat may come in between."""
    one = world()
    publisher = one.publisher()
    publisher.send_early(one.in_parts(1, HALF))

    publisher.prepare()

    assert one.log.newest == 1
    publisher.publish(one.in_parts(1, ROWS))
    assert one.log.newest == 1
    assert one.log.committed == one.expected(1)


@pytest.mark.parametrize(
    "other",
    [
        lambda one: one.in_parts(2, ROWS),
        lambda one: replace(one.in_parts(1, ROWS), incarnation=2),
        lambda one: replace(one.in_parts(1, ROWS), parts=one.in_parts(1, ROWS).parts[::-1]),
        lambda one: one.request(1),
    ],
    ids=["another epoch", "another incarnation", "another order", "other files"],
)
@pytest.mark.parametrize("again", [False, True], ids=["published", "sent early, published"])
def test_rows_sent_for_another_epoch_are_not_committed(
    world: Made, other: Callable[[World], ShardRequest], again: bool
) -> None:
    one = world()
    publisher = one.publisher()
    publisher.send_early(one.in_parts(1, HALF))
    wanted = replace(other(one), previous=0)

    if again:
        publisher.send_early(wanted)
    publisher.publish(wanted)

    due = one.expected(1) if wanted.epoch == 1 else [b"2:%d" % row for row in range(ROWS)]
    assert sorted(one.log.committed) == due
    assert one.log.newest == 2


def test_dropped_rows_are_sent_again(world: Made) -> None:
    one = world()
    publisher = one.publisher()
    publisher.send_early(one.in_parts(1, HALF))

    publisher.drop_early_send()
    publisher.drop_early_send()
    publisher.prepare()
    publisher.publish(one.in_parts(1, ROWS))

    assert one.log.committed == one.expected(1)
    assert one.log.aborted == 1


def test_a_lane_aborts_a_transaction_that_is_open_for_half_its_timeout(world: Made) -> None:
    """The broker would do it at its timeout. The rest of the epoch waits for the commit."""
    one, now_s = world(), [0.0]
    publisher = one.publisher(lambda: now_s[0])
    assert publisher.idle_s > 3600
    publisher.send_early(one.in_parts(1, 1))
    assert publisher.idle_s == 150

    now_s[0] = 150.0
    publisher.idle()
    assert one.log.aborted == 1
    assert publisher.send_early(one.in_parts(1, HALF)) == 0
    publisher.publish(one.in_parts(1, ROWS))

    assert one.log.committed == one.expected(1)
    assert publisher.send_early(one.in_parts(2, HALF)) == HALF


@pytest.mark.parametrize("again", [False, True], ids=["published", "sent early, published"])
def test_a_transaction_older_than_half_its_timeout_is_not_used(world: Made, again: bool) -> None:
    one, now_s = world(), [0.0]
    publisher = one.publisher(lambda: now_s[0])
    publisher.send_early(one.in_parts(1, 1))
    now_s[0] = 151.0

    if again:
        assert publisher.send_early(one.in_parts(1, HALF)) == 0
    publisher.publish(one.in_parts(1, ROWS))

    assert one.log.committed == one.expected(1)
    assert one.log.aborted == 1


def test_a_transaction_that_was_lost_costs_an_attempt_and_no_row(world: Made) -> None:
    """It timed out at the broker, or another producer initialised the id."""
    one = world()
    publisher = one.publisher()
    publisher.send_early(one.in_parts(1, HALF))
    one.log.newest += 1

    with pytest.raises(ProducerFailed):
        publisher.publish(one.in_parts(1, ROWS))
    one.publisher().publish(one.in_parts(1, ROWS))

    assert one.log.committed == one.expected(1)


def test_a_published_epoch_leaves_no_transaction_open(world: Made) -> None:
    one = world()
    one.attempt(1)
    publisher = one.publisher()
    publisher.send_early(one.in_parts(1, HALF))

    again = publisher.publish(one.in_parts(1, ROWS))

    assert again.replayed
    assert one.log.aborted == 1
    assert one.log.committed == one.expected(1)


def test_damage_is_found_before_a_row_is_sent(world: Made) -> None:
    one = world()
    request = one.in_parts(1, ROWS)
    (one.folder / request.parts[-1].path).write_bytes(b"other")

    with pytest.raises(EpochDamaged):
        one.publisher().send_early(request)

    assert one.log.sent == []


def test_an_undelivered_record_of_an_early_send_is_noticed(world: Made) -> None:
    one = world()
    one.log.drop_next_record = True

    with pytest.raises(ProducerFailed, match="acknowledged: 1 of 2"):
        one.publisher().send_early(one.in_parts(1, HALF))


Step = st.tuples(
    st.integers(0, ROWS), st.sampled_from(["", "", "PREPARE", "DROP", "LOST", "NEW", "DROPPED_RECORD", *POINTS])
)
Epoch = st.tuples(st.lists(Step, max_size=3), st.lists(st.sampled_from(["LOST_ANSWER", "LOST", *POINTS]), max_size=3))


class Driver:
    """Publishers over one log, each replaced when an attempt fails, as by a driver."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.publisher = world.publisher()

    def step(self, epoch: int, parts: int, what: str) -> None:
        log = self.world.log
        match what:
            case "PREPARE":
                self.publisher.prepare()
            case "DROP":
                self.publisher.drop_early_send()
            case "NEW":
                self.publisher = self.world.publisher()
        log.newest += what == "LOST"
        log.drop_next_record = what == "DROPPED_RECORD"
        self.attempted(lambda: self.publisher.send_early(self.world.in_parts(epoch, parts)), what)
        log.drop_next_record = False

    def publish(self, epoch: int, what: str) -> bool:
        log = self.world.log
        log.newest += what == "LOST"
        log.lose_next_answer = what == "LOST_ANSWER"
        done = self.attempted(lambda: self.publisher.publish(self.world.in_parts(epoch, ROWS)), what)
        log.lose_next_answer = False
        return done

    def attempted(self, attempt: Callable[[], object], what: str) -> bool:
        failpoints.arm(f"{what}:raise" if what in POINTS else "")
        try:
            attempt()
        except (FailpointHit, ProducerFailed, CkptError):
            self.publisher = self.world.publisher()
            return False
        finally:
            failpoints.arm("")
        return True


def driven(world: World, epochs: list[tuple[list[tuple[int, str]], list[str]]]) -> list[bytes | None]:
    """Return the visible rows at the end; an unpublished epoch has none."""
    driver = Driver(world)
    for epoch, (early, faults) in enumerate(epochs, start=1):
        shown = list(world.log.committed)
        for parts, what in early:
            driver.step(epoch, parts, what)
        assert world.log.committed == shown, "rows are visible before their epoch is committed"
        for what in faults:
            driver.publish(epoch, what)
        assert driver.publish(epoch, "") or driver.publish(epoch, "")
    return world.log.committed


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(epochs=st.lists(Epoch, min_size=1, max_size=4))
def test_rows_are_there_exactly_once_after_any_faults_of_early_sends(
    world: Made, epochs: list[tuple[list[tuple[int, str]], list[str]]]
) -> None:
    one = world()

    assert driven(one, epochs) == one.expected(len(epochs))


class SendsAllAgain(ShardPublisher):
    """A planted bug: the epoch's files go into the transaction that has some of them already."""

    def _send_rest(
        self, transaction: Transaction, request: ShardRequest, verified: Callable[[], None] = lambda: None
    ) -> int:
        transaction.sent = None
        return super()._send_rest(transaction, request, verified)

    def _check_delivered(self, delivered: int, request: ShardRequest) -> None:
        pass


class UsesAnyOpenTransaction(ShardPublisher):
    """A planted bug: does not compare the open rows with the epoch to publish."""

    def publish(self, request: ShardRequest, verified: Callable[[], None] = lambda: None) -> ShardResult:
        transaction = self._early.transaction
        if transaction is not None and transaction.sent is not None:
            files = tuple(request.parts[: len(transaction.sent.files)])
            transaction.sent = SentEarly(request.epoch, request.incarnation, files)
        return super().publish(request, verified)

    def _check_delivered(self, delivered: int, request: ShardRequest) -> None:
        pass


class PreparesAnyway(ShardPublisher):
    """A planted bug: initialises the next producer while the last one's transaction has rows, and does not notice their loss."""

    def prepare(self) -> None:
        self._ready = self._ready or self._initialised()
        if self._early.transaction is not None:
            self._early.transaction.producer, self._ready = self._ready, None

    def _check_delivered(self, delivered: int, request: ShardRequest) -> None:
        pass


@pytest.mark.parametrize(
    ("bug", "epochs"),
    [
        (CommitsAtOnce, [([(HALF, "")], [])]),
        (SendsAllAgain, [([(HALF, "")], [])]),
        (PreparesAnyway, [([(HALF, ""), (HALF, "PREPARE")], [])]),
    ],
)
def test_a_planted_bug_is_found_by_its_rows(
    world: Made, bug: type[ShardPublisher], epochs: list[tuple[list[tuple[int, str]], list[str]]]
) -> None:
    one = world(bug)

    try:
        found = driven(one, epochs)
    except AssertionError as verdict:
        assert "rows are visible before their epoch" in str(verdict)
        return

    assert found != one.expected(len(epochs))


def test_a_planted_lane_that_uses_any_open_transaction_is_found(world: Made) -> None:
    one = world(UsesAnyOpenTransaction)
    publisher = one.publisher()
    publisher.send_early(one.in_parts(1, HALF))

    publisher.publish(replace(one.in_parts(2, ROWS), previous=0))

    assert one.log.committed[:HALF] == one.expected(1)[:HALF], "the planted bug publishes rows of an aborted epoch"
