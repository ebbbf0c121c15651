"""Output of `spark-ckpt rescale`."""

from __future__ import annotations

from spark_ckpt.store.existing import existing_store
from tests.store.store_world import OPERATOR


def test_the_advice_holds_for_a_job_with_several_operators(command, world):
    """One setting counts for all operators, so that none fits after the rescale of one of them."""
    world.store.log.release(world.line.incarnation)
    uri = world.store.location.uri
    command("bootstrap", uri, "other", "--of", OPERATOR)
    answer = command("rescale", uri, OPERATOR, "--key-groups", 64)
    assert (answer.code, answer.err) == (0, "")

    log = existing_store(uri).log
    operators = log.manifest(log.state().latest).operators
    assert operators["other"].key_groups != operators[OPERATOR].key_groups == 64
    assert "where the job sets key_groups, leave it out" in answer.out
