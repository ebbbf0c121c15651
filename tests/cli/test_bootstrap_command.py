"""`spark-ckpt bootstrap`: what it says, and what it refuses."""

from __future__ import annotations

import pytest

from tests.store.store_world import OPERATOR


@pytest.fixture
def ended(world):
    """The driver has gone."""
    world.store.log.release(world.line.incarnation)
    return world.store.location.uri


def test_it_says_what_the_operator_begins_with_and_in_which_epoch(command, ended):
    told = command("bootstrap", ended, "new", "--of", OPERATOR, "--epoch", 2)
    assert (told.code, told.err) == (0, "")
    assert told.out.startswith("operator new: 3 keys in ")
    assert told.out.endswith(f"of {OPERATOR} at epoch 2\nepoch 4: the job begins with it\n")
    rows = command("state", ended, "new", "--json").json["rows"]
    assert {row["k"]: row["v"] for row in rows} == {"a": 1, "b": 3, "c": 4}


def test_programs_read_the_same(command, ended):
    told = command("bootstrap", ended, "new", "--of", OPERATOR, "--json").json
    assert (told["operator"], told["epoch"], told["rows"]) == ("new", 4, 2)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("new", "--of", "nobody"), 5, "no state of operator 'nobody'"),
        ((OPERATOR, "--of", OPERATOR), 2, f"operator '{OPERATOR}' has state in epoch 3"),
        (("a/b", "--of", OPERATOR), 2, "is no operator name"),
        (("new", "--of", OPERATOR, "--epoch", 9), 5, "epoch 9 is not in the log"),
        (("new", "--of", OPERATOR, "--savepoint", "none"), 5, "there is no savepoint 'none'"),
        (("new", "--of", OPERATOR, "--savepoint", "none", "--epoch", 1), 2, "not both"),
    ],
)
def test_a_mistake_is_told_and_changes_nothing(command, ended, arguments, code, said):
    told = command("bootstrap", ended, *arguments)
    assert (told.code, said in told.err) == (code, True), told.err
    assert command("list", ended, "--json").json["epochs"][-1]["epoch"] == 3
