"""An operator can find out which epochs were published and declare it; then the sink continues."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kafka_kit import Cluster, Staged, output, publish
from spark_ckpt_kafka import repair

from spark_ckpt.errors import PublishConflict


def _repair(cluster: Cluster, *verb: str) -> int:
    group = f"{cluster.store_id}.out.0"
    place = ["--servers", cluster.broker.servers, "--topic", cluster.topic, "--group", group]
    return repair.main([*place, *verb])


def test_an_epoch_whose_marker_was_lost_is_found_and_declared_published(
    cluster: Cluster, staged: Callable[..., Staged], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = staged(1, rows=30), staged(2)
    publish(cluster.publisher(audit_headers=True), 1, first)
    cluster.administer(lambda admin: admin.delete_groups([f"{cluster.store_id}.out.0"]))
    publisher = cluster.publisher(2)
    with pytest.raises(PublishConflict):
        publisher.publish(output(2, second))

    assert _repair(cluster, "show") == 0
    assert _repair(cluster, "find", "1") == 0
    assert _repair(cluster, "set", "1") == 0
    shown = capsys.readouterr().out
    publisher.publish(output(2, second))

    assert "no marker" in shown
    assert "30 records of epoch 1" in shown
    cluster.assert_exactly(first, second)


def test_repair_reports_a_missing_topic(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    group = ["--group", "s.out.0", "--servers", cluster.broker.servers]

    assert repair.main([*group, "--topic", "no-such-topic", "show"]) == 9
    assert "does not exist" in capsys.readouterr().err
