"""Output and refusals of `spark-ckpt bootstrap`."""

from __future__ import annotations

import pytest

from tests.store.store_world import OPERATOR


@pytest.fixture
def ended(world):
    """Return a store whose driver has ended."""
    world.store.log.release(world.line.incarnation)
    return world.store.location.uri


def test_bootstrap_prints_the_operators_state_and_its_epoch(command, ended):
    answer = command("bootstrap", ended, "new", "--of", OPERATOR, "--epoch", 2)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("operator new: 3 keys in ")
    assert answer.out.endswith(f"of {OPERATOR} at epoch 2\nepoch 4: the job begins with it\n")
    rows = command("state", ended, "new", "--json").json["rows"]
    assert {row["k"]: row["v"] for row in rows} == {"a": 1, "b": 3, "c": 4}


def test_json_has_the_same_facts(command, ended):
    answer = command("bootstrap", ended, "new", "--of", OPERATOR, "--json").json
    assert (answer["operator"], answer["epoch"], answer["rows"]) == ("new", 4, 2)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("new", "--of", "nobody"), 5, "no state of operator 'nobody'"),
        ((OPERATOR, "--of", OPERATOR), 2, f"operator '{OPERATOR}' has state in epoch 3"),
        (("a/b", "--of", OPERATOR), 2, "is no operator name"),
        (("new", "--of", OPERATOR, "--epoch", 9), 5, "epoch 9 is not in the log"),
        (("new", "--of", OPERATOR, "--savepoint", "none"), 5, "there is no savepoint 'none'"),
        (("new", "--of", OPERATOR, "--savepoint", "none", "--epoch", 1), 2, "not both"),
    ],
)
def test_a_mistake_is_reported_and_changes_nothing(command, ended, arguments, code, message):
    answer = command("bootstrap", ended, *arguments)
    assert (answer.code, message in answer.err) == (code, True), answer.err
    assert command("list", ended, "--json").json["epochs"][-1]["epoch"] == 3
