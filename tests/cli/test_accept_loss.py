"""A loss is accepted by name and number, and only while no driver runs."""

from spark_ckpt.store.store import Store
from tests.store.store_world import ELSEWHERE, JOB, SINK


def test_a_job_goes_on_above_the_epochs_that_were_lost(command, world):
    store = world.store.location.uri
    driver = Store.open(store, JOB).log
    driver.begin_incarnation(ELSEWHERE, lease_ms=600_000, takeover=True)
    assert command("accept-loss", store, "--epoch", 5, "--incarnation", 4).code == 4
    driver.release(2)

    told = command("accept-loss", store, "--epoch", 5, "--incarnation", 4)

    assert told.code == 0
    assert "epochs 4 and 5: lost. The job continues from epoch 3; its next epoch is 6." in told.out
    point = world.begin()
    assert (point.incarnation, point.last, point.dropped) == (5, 5, {SINK: [4, 5]})


def test_there_is_nothing_to_accept_when_nothing_is_lost(command, world):
    world.store.log.release(1)
    told = command("accept-loss", world.store.location.uri, "--epoch", 3, "--json")
    assert told.json == {"lost": [], "newest": 3, "next": 4}


def test_verify_says_which_rows_of_the_log_are_missing(command, world):
    """An emptied commit was read as "nothing happened", and every epoch that was left as whole."""
    commits = sorted((world.store.location.local / "epochs/_delta_log").glob("0*.json"))
    commits[-1].write_bytes(b"")
    told = command("verify", world.store.location.uri, "--deep")
    assert told.code == 5
    assert "row 5 of the epoch log is missing" in told.err
    assert "next: put the folder epochs of the newest backup" in told.err


def test_where_rows_may_be_missing_behind_a_loss_the_way_on_is_named(command, world):
    world.store.log.release(1)
    told = command("accept-loss", world.store.location.uri, "--epoch", 5, "--incarnation", 4)
    log_state = world.store.log.state()
    assert log_state.shown < log_state.latest
    assert f"job.start(restore={log_state.shown})" in told.out
