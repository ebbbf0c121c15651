"""The holder of a job's lease, its standbys, and a handover between them."""

from __future__ import annotations

import threading
import time

import pytest

from spark_ckpt.cli import handover as handover_module
from spark_ckpt.epochs.records import MaintenanceEnded, MaintenanceLeased, MaintenanceTurn
from spark_ckpt.store.holder import current_holder
from spark_ckpt.store.maintenance_lease import MaintenanceLog
from spark_ckpt.store.standbys import StandbyNote, Standbys
from spark_ckpt.store.store import Store
from tests.store.store_world import ELSEWHERE, JOB, World

NOTE = StandbyNote(holder=ELSEWHERE, waits_since_ms=0, told_ms=60_000, lease_of=1, epoch=3, renewals=4, warm=True)

NEAR = NOTE.model_copy(update={"holder": current_holder(JOB)})


@pytest.fixture
def store(world) -> str:
    return world.store.location.uri


def test_the_lease_is_printed_with_its_holder_and_standbys(command, world, store):
    Standbys(world.store.location).write("far", NOTE)
    answer = command("lease", store)
    assert answer.code == 0
    assert "holder        test (process 1 on another-host)" in answer.out
    assert "lease         held; 30 s from each renewal, the last at 2023-11-14" in answer.out
    assert "maintenance   the driver's own: no standby has had the checkpoint lease yet" in answer.out
    assert answer.out.splitlines()[-1].split()[-6:] == ["3", "4", "yes", "-", "1970-01-01", "00:01:00Z"]


def test_the_lease_is_printed_as_json(command, world, store):
    Standbys(world.store.location).write("far", NOTE)
    world.store.log.ask_handover(1)
    answer = command("lease", store, "--json").json
    assert answer["lease"]["state"] == "held"
    assert (answer["lease"]["incarnation"], answer["lease"]["latest"], answer["lease"]["handover_asked"]) == (
        1,
        3,
        True,
    )
    assert [(note["host"], note["epoch"], note["warm"]) for note in answer["standbys"]] == [("another-host", 3, True)]


def test_the_maintenance_lease_is_printed_with_its_holder_and_the_next_candidates(command, world, store):
    """Standbys that have waited longer, or are warm, have a larger share."""
    near = NEAR.model_copy(update={"clock_ms": 5, "health": 50})
    Standbys(world.store.location).write("far", NOTE.model_copy(update={"clock_ms": 5}))
    Standbys(world.store.location).write("near", near)
    rows = MaintenanceLog(world.store.log)
    numbers = {"boot": 1, "reported_ms": 5, "budget_ms": 7_000, "ttl_ms": 10_000}
    turns = {"near": MaintenanceTurn(since=0, ttl_ms=10_000), "far": MaintenanceTurn(since=2, ttl_ms=10_000)}
    token = rows.lease(MaintenanceLeased(incarnation=1, holder="near", **numbers, turns=turns))
    answer = command("lease", store)
    assert f"maintenance   {near.holder}, checkpoint lease {token} since 2023-11-14" in answer.out
    assert "for 10 s; not reported as done" in answer.out
    rows.end(MaintenanceEnded(token=token, incarnation=1, epoch=3, damage="a file is missing"))
    answer = command("lease", store)
    assert "done up to epoch 3 at 2023-11-14" in answer.out
    assert "damage        a file is missing" in answer.out
    found = command("lease", store, "--json").json
    assert (found["maintenance"]["token"], found["maintenance"]["standby"], found["maintenance"]["epoch"]) == (
        token,
        "near",
        3,
    )
    assert [note["next_maintenance_percent"] for note in found["standbys"]] == [14, 86]


def test_a_released_lease_and_one_of_a_dead_process_are_distinguished(command, world, store):
    world.store.log.release(1)
    assert command("lease", store, "--json").json["lease"]["state"] == "free"
    here = current_holder(JOB)
    world.store.log.begin_incarnation(here.model_copy(update={"pid_start": here.pid_start + 1}))
    assert command("lease", store, "--json").json["lease"]["state"] == "holder gone"


def test_a_handover_without_a_standby_is_refused(command, world, store, monkeypatch):
    monkeypatch.setattr(handover_module, "HEARD_S", 0.2)
    Standbys(world.store.location).write(
        "far", NOTE
    )  # the note of a standby that died on another host: it is never renewed
    answer = command("handover", store)
    assert answer.code == 4
    assert "[CKPT_HANDOVER_FAILED] no standby waits: the job would stand still" in answer.err
    assert not world.store.log.state().handover_asked
    world.store.log.release(1)
    assert "no driver runs the job" in command("handover", store).err


def test_a_standby_on_another_host_is_alive_if_it_renews_its_note(command, world, store, monkeypatch):
    Standbys(world.store.location).write("far", NOTE)
    waiting = Standbys.waiting

    def renew_note(standbys):
        monkeypatch.setattr(Standbys, "waiting", waiting)
        found = standbys.waiting()
        standbys.write("far", NOTE.model_copy(update={"told_ms": NOTE.told_ms + 5_000}))
        return found

    monkeypatch.setattr(Standbys, "waiting", renew_note)
    answer = command("handover", store, "--timeout", 1)
    assert "no standby waits" not in answer.err
    assert world.store.log.state().handover_asked


def test_a_driver_that_does_not_end_is_reported(command, world, store):
    Standbys(world.store.location).write("here", NEAR)
    answer = command("handover", store, "--timeout", 1)
    assert answer.code == 4
    assert "the driver has not ended within 1 s" in answer.err
    world.store.log.release(1)
    world.store.log.begin_incarnation(ELSEWHERE)


def test_a_driver_that_fails_and_continues_by_itself_has_not_handed_over(command, world, store):
    """Its next incarnation does not know the request, and begins under the kept lease."""
    Standbys(world.store.location).write("here", NEAR)

    def driver() -> None:
        while not world.store.log.state().handover_asked:
            time.sleep(0)
        world.store.log.release(1, "[CKPT_QUERY_FAILED] executor lost", keeps=True)
        world.begin()

    actor = threading.Thread(target=driver)
    actor.start()
    answer = command("handover", store)
    actor.join()
    assert answer.code == 4
    assert "continues by itself: [CKPT_QUERY_FAILED] executor lost" in answer.err


def test_a_handover_prints_the_final_epoch_and_the_gap(command, world, store):
    """The driver and its standby, as they act on the log: request, final epoch, release, next incarnation."""
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
    answer = command("handover", store, "--json")
    actors.join()
    assert answer.code == 0, answer.err
    assert (answer.json["incarnation"], answer.json["holder"]) == (2, str(ELSEWHERE))
    assert answer.json["final_epoch"] == 4
    assert 0 <= answer.json["gap_s"] < 60
    assert Store.open(store, JOB).log.state().latest == 5
