"""The maintenance lease in the log: one at a time, held by the running driver; writes need the newest token."""

from __future__ import annotations

import pytest
from store_world import ELSEWHERE, JOB, OPERATOR, Clock

from spark_ckpt.epochs.records import MaintenanceEnded, MaintenanceLeased
from spark_ckpt.epochs.retention import Retention
from spark_ckpt.errors import Fenced
from spark_ckpt.store.maintenance_lease import MaintenanceLog, checks_of, damage_of, under_lease
from spark_ckpt.store.spark_state import Known, Moment
from spark_ckpt.store.store import Store

KEEP = Retention(keep_last=1, slack=0)


@pytest.fixture
def other(world):
    """Open the store as a standby does."""
    return Store.open(world.store.location.uri, JOB, now_ms=Clock())


def lease(holder: str = "b", reported_ms: int = 1, incarnation: int = 1) -> MaintenanceLeased:
    numbers = {"boot": 1, "reported_ms": reported_ms, "budget_ms": 700, "ttl_ms": 1_000}
    return MaintenanceLeased(incarnation=incarnation, holder=holder, **numbers)


def allowed() -> None:
    """Allow every step."""


def shown(world):
    """Return the key of the epoch in the table, read again: another store object may have written it."""
    table = world.store.state(OPERATOR).table
    table.refreshed()
    return table.newest_txn_version()


def test_a_repeated_lease_is_appended_once(world, other):
    rows = MaintenanceLog(world.store.log)
    token = rows.lease(lease())
    assert rows.lease(lease()) == token
    assert other.log.state().maintenance.token == token
    assert rows.lease(lease(reported_ms=2)) > token


def test_an_end_that_precedes_the_drivers_read_keeps_the_lease(world, other, monkeypatch):
    append, ended = world.store.log.append, []

    def appended(propose):
        append(propose)
        if not ended:
            token = other.log.state().maintenance.token
            ended.append(MaintenanceLog(other.log).end(MaintenanceEnded(token=token, incarnation=1, epoch=1)))

    monkeypatch.setattr(world.store.log, "append", appended)
    rows = MaintenanceLog(world.store.log)
    token = rows.lease(lease())
    assert ended[0] > token
    assert rows.lease(lease()) == token, "not appended again"
    assert world.store.log.state().maintenance.ended_token == ended[0]


def test_a_fenced_driver_appends_no_lease(world, other):
    other.log.begin_incarnation(ELSEWHERE, takeover=True)
    with pytest.raises(Fenced):
        MaintenanceLog(world.store.log).lease(lease())
    assert other.log.state().maintenance is None


def test_a_standby_under_the_lease_does_the_drivers_maintenance(world, other):
    for value in range(4):
        world.epoch({"a": value}, materialize=False, acked=world.last)
    token = MaintenanceLog(world.store.log).lease(lease())
    log_state, report = under_lease(other, token, KEEP, allowed)
    assert (log_state.incarnation, log_state.latest) == (1, 4)
    assert shown(world) == 1 << 40 | 4
    assert report.epochs
    assert [brief.epoch for brief in world.store.log.state().epochs] == [
        brief.epoch for brief in other.log.state().epochs
    ]
    assert 1 not in world.store.log.state().by_id


def test_tables_have_the_epoch_that_the_newest_incarnation_continues_from(world, other):
    """After a restore the tables have the restored epoch, for every driver that materializes them."""
    world.epoch({"a": 1})
    world.epoch({"a": 2})
    world.begin(restore=1)
    token = MaintenanceLog(world.store.log).lease(lease(incarnation=2))
    under_lease(other, token, Retention(), allowed)
    assert shown(world) == 2 << 40 | 1


@pytest.mark.parametrize("what", ["replaced", "over"])
def test_a_holder_of_an_old_token_writes_nothing(world, other, what):
    rows = MaintenanceLog(world.store.log)
    token = rows.lease(lease())
    for value in range(4):
        world.epoch({"a": value}, materialize=False)
    if what == "replaced":
        rows.lease(lease("c"))
    else:
        rows.end(MaintenanceEnded(token=token, failure="it was ill"))
    before = world.store.log.state()
    with pytest.raises(Fenced):
        under_lease(other, token, KEEP, allowed)
    assert world.store.log.state() == before
    assert shown(world) == -1


def test_a_holder_that_pauses_before_its_write_drops_no_epoch(world, other, monkeypatch):
    """The next lease comes between the materialization and the retention: by compare-and-swap."""
    rows = MaintenanceLog(world.store.log)
    token = rows.lease(lease())
    for value in range(4):
        world.epoch({"a": value}, materialize=False)
    shorten = other.log.shorten

    def late(*arguments):
        rows.lease(lease("c"))
        return shorten(*arguments)

    monkeypatch.setattr(other.log, "shorten", late)
    with pytest.raises(Fenced):
        under_lease(other, token, KEEP, allowed)
    assert len(world.store.log.state().epochs) == 4


def test_the_end_of_an_old_lease_is_ignored(world, other):
    rows = MaintenanceLog(world.store.log)
    old = rows.lease(lease())
    new = rows.lease(lease("c"))
    with pytest.raises(Fenced):
        MaintenanceLog(other.log).end(MaintenanceEnded(token=old, epoch=9))
    maintenance = world.store.log.state().maintenance
    assert (maintenance.token, maintenance.ended) == (new, None)


def test_the_newest_lease_and_its_end_outlive_retention(world, other):
    rows = MaintenanceLog(world.store.log)
    for value in range(4):
        token = rows.lease(lease(reported_ms=value))
        world.epoch({"a": value})
        ended = rows.end(MaintenanceEnded(token=token, incarnation=1, epoch=value))
    world.store.retain(KEEP)
    maintenance = Store.open(world.store.location.uri, JOB, now_ms=Clock()).log.state().maintenance
    assert (maintenance.token, maintenance.ended_token, maintenance.ended.epoch) == (token, ended, 3)
    assert ended > token


def test_a_damaged_file_of_an_epoch_is_found_and_intact_ones_are_read_once(world, other, monkeypatch):
    manifest = world.epoch({"a": 1})
    damage, whole = damage_of(other, manifest, set(), allowed)
    assert (damage, len(whole)) == ("", sum(1 for _ in checks_of(other, manifest)))
    read = []
    assert damage_of(other, manifest, whole, lambda: read.append(1)) == ("", whole)
    assert read == []
    (file,) = manifest.operators[OPERATOR].files
    path = other.state(OPERATOR).location.local / file.path
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    damage, _ = damage_of(other, manifest, set(), allowed)
    assert file.path in damage


def test_damage_in_the_state_of_sparks_own_operators_is_found(world, other, tmp_path):
    (tmp_path / "1.delta").write_text("state")
    moment = Moment(1, 0, "{}", "v1\n{}", "a provider", 1, 1, ("dedupe",))
    state = world.store.spark_states.keep(tmp_path, ["1.delta"], moment, Known())
    manifest = world.manifest().model_copy(update={"spark_state": state})
    assert damage_of(other, manifest, set(), allowed)[0] == ""
    (file,) = other.spark_states.index(state).files
    (other.spark_states.location.local / file.path).write_text("stale")
    assert file.path in damage_of(other, manifest, set(), allowed)[0]
