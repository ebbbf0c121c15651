"""A loss is accepted by name and number, and only while no driver runs."""

from spark_ckpt.store.store import Store
from tests.store.store_world import ELSEWHERE, JOB, SINK


def test_a_job_continues_after_the_numbers_of_lost_epochs(command, world):
    store = world.store.location.uri
    driver = Store.open(store, JOB).log
    driver.begin_incarnation(ELSEWHERE, lease_ms=600_000, takeover=True)
    assert command("accept-loss", store, "--epoch", 5, "--incarnation", 4).code == 4
    driver.release(2)

    answer = command("accept-loss", store, "--epoch", 5, "--incarnation", 4)

    assert answer.code == 0
    assert "epochs 4 and 5: lost. The job continues from epoch 3; its next epoch is 6." in answer.out
    point = world.begin()
    assert (point.incarnation, point.last, point.dropped) == (5, 5, {SINK: [4, 5]})


def test_nothing_is_accepted_when_nothing_is_lost(command, world):
    world.store.log.release(1)
    answer = command("accept-loss", world.store.location.uri, "--epoch", 3, "--json")
    assert answer.json == {"lost": [], "newest": 3, "next": 4}
    text = command("accept-loss", world.store.location.uri, "--epoch", 3).out
    assert "has lost no epoch up to 3" in text
    assert "give it another table or topic (accept_new_sink)" in text


def test_verify_names_missing_rows_of_the_log(command, world):
    """An emptied commit used to be read as "nothing happened", and every remaining epoch as intact."""
    commits = sorted((world.store.location.local / "epochs/_delta_log").glob("0*.json"))
    commits[-1].write_bytes(b"")
    answer = command("verify", world.store.location.uri, "--deep")
    assert answer.code == 5
    assert "row 5 of the epoch log is missing" in answer.err
    assert "next: put the folder epochs of the newest backup" in answer.err


def test_a_loss_with_possibly_missing_rows_names_the_epoch_to_restore(command, world):
    world.store.log.release(1)
    answer = command("accept-loss", world.store.location.uri, "--epoch", 5, "--incarnation", 4)
    log_state = world.store.log.state()
    assert log_state.shown < log_state.latest
    assert f"job.start(restore={log_state.shown})" in answer.out
