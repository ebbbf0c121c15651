"""A second driver reads the newest row of the lease; an incarnation may build on the end of that lease."""

from __future__ import annotations

import pytest
from store_world import ELSEWHERE, JOB, Clock, World

from spark_ckpt.epochs.retention import Retention
from spark_ckpt.errors import StoreInUse, StoreUnreachable
from spark_ckpt.store.holder import current_holder
from spark_ckpt.store.location import Location
from spark_ckpt.store.log_table import LogTable
from spark_ckpt.store.standbys import StandbyNote, Standbys
from spark_ckpt.store.store import Store


@pytest.fixture
def world(tmp_path):
    return World(tmp_path / "store")


def seen_by_another(world: World) -> Store:
    return Store.open(world.store.location.uri, JOB, now_ms=Clock())


def test_every_renewal_of_a_lease_is_another_token(world):
    log, tokens = world.store.log, []
    world.begin()
    tokens.append(log.state().lease_token)
    log.renew(1, 30_000)
    tokens.append(log.state().lease_token)
    world.epoch({"a": 1})
    tokens.append(log.state().lease_token)
    assert tokens == sorted(set(tokens))


def test_rows_of_other_writers_renew_no_lease(world):
    log = world.store.log
    world.begin()
    world.epoch({"a": 1})
    token = log.state().lease_token
    seen_by_another(world).log.add_savepoint("here", 1)
    assert log.state().lease_token == token


def test_an_incarnation_that_builds_on_the_end_of_a_lease_is_refused_when_the_lease_was_renewed(world):
    world.begin()
    other = seen_by_another(world).log
    token = other.state().lease_token
    world.store.log.renew(1, 30_000)
    with pytest.raises(StoreInUse):
        other.begin_incarnation(ELSEWHERE, ended=token)
    assert other.state().incarnation == 1
    assert other.begin_incarnation(ELSEWHERE, ended=other.state().lease_token).incarnation == 2


def test_a_renewal_between_the_read_and_the_append_wins(world, monkeypatch):
    """By compare-and-swap: the second driver has read the log, and only then the first one renews."""
    world.begin()
    other = seen_by_another(world).log
    token, append = other.state().lease_token, LogTable.append

    def raced(table, row):
        monkeypatch.setattr(LogTable, "append", append)
        world.store.log.renew(1, 30_000)
        append(table, row)

    monkeypatch.setattr(LogTable, "append", raced)
    with pytest.raises(StoreInUse):
        other.begin_incarnation(ELSEWHERE, ended=token)
    assert other.state().incarnation == 1


def test_the_token_outlives_retention(world):
    world.begin()
    for value in range(4):
        world.epoch({"a": value})
    token = world.store.log.state().lease_token
    world.store.retain(Retention(keep_last=1))
    assert seen_by_another(world).log.state().lease_token == token


def test_a_lease_is_released_once(world):
    world.begin()
    world.store.log.release(1)
    freed = world.store.log.state()
    world.store.log.release(1)
    assert freed.is_free
    assert world.store.log.state() == freed


def test_a_handover_is_requested_from_the_running_incarnation_only(world):
    world.begin()
    other = seen_by_another(world).log
    assert not world.store.log.state().handover_asked
    other.ask_handover(1)
    assert world.store.log.state().handover_asked
    world.store.retain(Retention(keep_last=1))
    assert seen_by_another(world).log.state().handover_asked
    other.begin_incarnation(ELSEWHERE, takeover=True)
    assert not other.state().handover_asked
    with pytest.raises(StoreInUse):
        other.ask_handover(1)


def test_standbys_are_listed_until_they_withdraw_or_are_provably_dead(world):
    standbys, here = Standbys(world.store.location), current_holder(JOB)
    dead = here.model_copy(update={"pid_start": here.pid_start + 1})
    for name, holder in (("alive", here), ("far", ELSEWHERE), ("dead", dead)):
        standbys.write(name, StandbyNote(holder=holder, waits_since_ms=1, told_ms=2))
    assert {note.holder for note in standbys.waiting()} == {here, ELSEWHERE}
    standbys.forget_dead()
    assert sorted(info.path for info in world.store.location.child("standbys").list()) == ["alive.json", "far.json"]
    standbys.withdraw("alive")
    assert [note.holder for note in standbys.waiting()] == [ELSEWHERE]


@pytest.mark.parametrize(
    "damage", [b"", b"{", b'{"holder": {"host": "h"}, "waits_since_ms": 1, "told_ms": 1, "new": 1}']
)
def test_a_note_that_cannot_be_read_is_no_standby(world, damage):
    world.store.location.child("standbys").write_bytes("torn.json", damage)
    assert Standbys(world.store.location).waiting() == []


def test_a_note_in_an_outage_is_no_standby_that_has_gone(world, monkeypatch):
    standbys = Standbys(world.store.location)
    standbys.write("far", StandbyNote(holder=ELSEWHERE, waits_since_ms=1, told_ms=2))

    def away(location, path):
        raise StoreUnreachable("no answer")

    monkeypatch.setattr(Location, "read_bytes", away)
    for look in (standbys.waiting, standbys.named, standbys.forget_dead):
        with pytest.raises(StoreUnreachable):
            look()
