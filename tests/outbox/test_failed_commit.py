"""A commit that fails ends the query, and nothing that was known before is forgotten. The log has the reason in short."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spark_ckpt.errors import PublishFailed, StoreOutage
from spark_ckpt.outbox.running import OutboxRun
from spark_ckpt.store.epoch_log import EpochLog
from tests.outbox.outbox_kit import SINKS
from tests.rewind.outbox_world import Rows, World


def test_a_failed_commit_loses_no_acknowledgement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The marker of a sink may expire before the query starts again: then only the log knows the published epoch."""
    world = World(tmp_path)
    world.run(1)
    run = OutboxRun(replace(world.settings(), ack_wait_ms=600_000, publish_timeout_ms=0))
    world.plan(1)
    run.call(Rows(1, [(1, 1)]))
    world.plan(2)

    def fails(*arguments: object, **named: object) -> None:
        raise StoreOutage("no answer")

    monkeypatch.setattr(EpochLog, "commit_epoch", fails)
    with pytest.raises(StoreOutage) as caught:
        run.call(Rows(2, []))
    run.close(caught.value)

    assert world.log().state().acked == dict.fromkeys(SINKS, 2)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (RuntimeError("An error occurred while calling o7.collectToPython\n\tat java.base"), "RuntimeError"),
        (PublishFailed("no broker\nrow 7", hint="start it", sink="gold"), "[CKPT_PUBLISH_FAILED] no broker"),
    ],
)
def test_the_log_has_no_rows_and_no_java_stack_of_an_error(tmp_path: Path, error: Exception, why: str) -> None:
    world = World(tmp_path)
    world.run(1)
    run = OutboxRun(world.settings())
    world.plan(1)
    run.call(Rows(1, [(1, 1)]))
    run.close(error)
    assert world.log().state().incarnations[-1].why == why
