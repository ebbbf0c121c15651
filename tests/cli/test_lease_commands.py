"""Who holds a job, who waits behind, and a handover between the two."""

from __future__ import annotations

import threading
import time

import pytest

from spark_ckpt.cli import handover as handover_module
from spark_ckpt.epochs.records import UpkeepEnded, UpkeepLeased, UpkeepTurn
from spark_ckpt.store.holder import current_holder
from spark_ckpt.store.standbys import StandbyNote, Standbys
from spark_ckpt.store.store import Store
from spark_ckpt.store.upkeep import UpkeepLog
from tests.store.store_world import ELSEWHERE, JOB, World

NOTE = StandbyNote(holder=ELSEWHERE, waits_since_ms=0, told_ms=60_000, lease_of=1, epoch=3, renewals=4, warm=True)

NEAR = NOTE.model_copy(update={"holder": current_holder(JOB)})


@pytest.fixture
def store(world) -> str:
    return world.store.location.uri


def test_the_lease_is_told_with_its_holder_and_the_standbys_behind(command, world, store):
    Standbys(world.store.location).write("far", NOTE)
    told = command("lease", store)
    assert told.code == 0
    assert "holder        test (process 1 on another-host)" in told.out
    assert "lease         held; 30 s from each renewal, the last at 2023-11-14" in told.out
    assert "upkeep        the driver's own: no standby has had the checkpoint lease yet" in told.out
    assert told.out.splitlines()[-1].split()[-6:] == ["3", "4", "yes", "-", "1970-01-01", "00:01:00Z"]


def test_the_lease_is_told_as_json(command, world, store):
    Standbys(world.store.location).write("far", NOTE)
    world.store.log.ask_handover(1)
    told = command("lease", store, "--json").json
    assert told["lease"]["state"] == "held"
    assert (told["lease"]["incarnation"], told["lease"]["latest"], told["lease"]["handover_asked"]) == (1, 3, True)
    assert [(note["host"], note["epoch"], note["warm"]) for note in told["standbys"]] == [("another-host", 3, True)]


def test_the_checkpoint_lease_is_told_with_its_holder_and_who_may_be_next(command, world, store):
    """Who has waited longer for a turn, or is warmer, has the larger share."""
    near = NEAR.model_copy(update={"clock_ms": 5, "health": 50})
    Standbys(world.store.location).write("far", NOTE.model_copy(update={"clock_ms": 5}))
    Standbys(world.store.location).write("near", near)
    rows = UpkeepLog(world.store.log)
    numbers = {"boot": 1, "reported_ms": 5, "budget_ms": 7_000, "ttl_ms": 10_000}
    turns = {"near": UpkeepTurn(since=0, ttl_ms=10_000), "far": UpkeepTurn(since=2, ttl_ms=10_000)}
    token = rows.lease(UpkeepLeased(incarnation=1, holder="near", **numbers, turns=turns))
    told = command("lease", store)
    assert f"upkeep        {near.holder}, checkpoint lease {token} since 2023-11-14" in told.out
    assert "for 10 s; not reported as done" in told.out
    rows.end(UpkeepEnded(token=token, incarnation=1, epoch=3, damage="a file is missing"))
    told = command("lease", store)
    assert "done up to epoch 3 at 2023-11-14" in told.out
    assert "damage        a file is missing" in told.out
    found = command("lease", store, "--json").json
    assert (found["upkeep"]["token"], found["upkeep"]["standby"], found["upkeep"]["epoch"]) == (token, "near", 3)
    assert [note["next_upkeep_percent"] for note in found["standbys"]] == [14, 86]


def test_a_lease_that_was_given_up_and_one_of_a_dead_process_are_told_apart(command, world, store):
    world.store.log.release(1)
    assert command("lease", store, "--json").json["lease"]["state"] == "free"
    here = current_holder(JOB)
    world.store.log.begin_incarnation(here.model_copy(update={"pid_start": here.pid_start + 1}))
    assert command("lease", store, "--json").json["lease"]["state"] == "holder gone"


def test_nothing_is_handed_over_to_nobody(command, world, store, monkeypatch):
    monkeypatch.setattr(handover_module, "HEARD_S", 0.2)
    Standbys(world.store.location).write(
        "far", NOTE
    )  # what one leaves that died on another host: it is never written anew
    told = command("handover", store)
    assert told.code == 4
    assert "[CKPT_HANDOVER_FAILED] no standby waits: the job would stand still" in told.err
    assert not world.store.log.state().handover_asked
    world.store.log.release(1)
    assert "no driver runs the job" in command("handover", store).err


def test_a_standby_elsewhere_is_known_to_be_alive_by_what_it_tells(command, world, store, monkeypatch):
    Standbys(world.store.location).write("far", NOTE)
    waiting = Standbys.waiting

    def told_again(standbys):
        monkeypatch.setattr(Standbys, "waiting", waiting)
        found = standbys.waiting()
        standbys.write("far", NOTE.model_copy(update={"told_ms": NOTE.told_ms + 5_000}))
        return found

    monkeypatch.setattr(Standbys, "waiting", told_again)
    told = command("handover", store, "--timeout", 1)
    assert "no standby waits" not in told.err
    assert world.store.log.state().handover_asked


def test_a_driver_that_does_not_end_is_told(command, world, store):
    Standbys(world.store.location).write("here", NEAR)
    told = command("handover", store, "--timeout", 1)
    assert told.code == 4
    assert "the driver has not ended within 1 s" in told.err
    world.store.log.release(1)
    world.store.log.begin_incarnation(ELSEWHERE)


def test_a_handover_tells_the_final_epoch_and_the_gap(command, world, store):
    """The driver and its standby, as they act on the log: asked, a final epoch, the lease is free, the next incarnation."""
    Standbys(world.store.location).write("here", NEAR)

    def both() -> None:
        while not world.store.log.state().handover_asked:
            time.sleep(0)
        world.epoch({"a": 9})
        world.store.log.release(1)
        second = World(store, world.clock)
        second.expected, second.chains = world.expected, world.chains
        second.begin(takeover=False)
        second.epoch({"a": 10})

    actors = threading.Thread(target=both)
    actors.start()
    told = command("handover", store, "--json")
    actors.join()
    assert told.code == 0, told.err
    assert (told.json["incarnation"], told.json["holder"]) == (2, str(ELSEWHERE))
    assert told.json["final_epoch"] == 4
    assert 0 <= told.json["gap_s"] < 60
    assert Store.open(store, JOB).log.state().latest == 5
