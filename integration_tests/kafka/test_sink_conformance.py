"""`KafkaSink` keeps the promises of a sink on a real broker, by the suite for any connector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka_kit import Cluster

from spark_ckpt.testing import SinkConformance, SinkSubject


def rows(epoch: int) -> pa.Table:
    keys = [f"key-{n}".encode() for n in range(4)]
    values = [f"{epoch}:{n}".encode() for n in range(4)]
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def shown(cluster: Cluster) -> list[dict[str, Any]]:
    return [{"key": record.key, "value": record.value} for record in cluster.read()]


# Single promises, with less overhead: test_publish_*.py. The suite itself: tests/delta, tests/conformance.
@pytest.mark.long
class TestKafkaSink(SinkConformance):
    @pytest.fixture
    def subject(self, cluster: Cluster, tmp_path: Path) -> SinkSubject:
        (tmp_path / "outbox").mkdir()
        return SinkSubject(
            make=cluster.sink,
            rows=rows,
            shown=lambda: shown(cluster),
            staged_in=tmp_path / "outbox",
            renew=lambda: cluster.recreate(cluster.topic),
        )
