"""Topics of a broker for `rewind plan`: their first and last offsets, and offsets at a time."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import util
from typing import TYPE_CHECKING

from spark_ckpt.errors import EnvironmentUnfit, SourceInvalid

if TYPE_CHECKING:
    from spark_ckpt_kafka.control import KafkaControl, Positions


class BrokerTopics:
    """Offsets of one cluster's topics. Each answer is cached for the duration of a plan. Raises `SourceInvalid`."""

    def __init__(self, servers: str, properties: Mapping[str, str]) -> None:
        if util.find_spec("spark_ckpt_kafka") is None or util.find_spec("kafka") is None:
            raise EnvironmentUnfit("the Kafka connector is not installed", hint="pip install 'spark-ckpt[kafka]'")
        from spark_ckpt_kafka.control import KafkaControl
        from spark_ckpt_kafka.options import Connection, split_options

        self._control: KafkaControl = KafkaControl(Connection(servers, split_options(properties)[0]))
        self.earliest = cache(self._earliest)
        self.ends = cache(self._ends)
        self.first_at = cache(self._first_at)

    def close(self) -> None:
        """Close the connection."""
        self._control.close()

    def _earliest(self, topic: str) -> dict[int, int]:
        return self._asked(topic, None, "beginnings")

    def _ends(self, topic: str) -> dict[int, int]:
        return self._asked(topic, None, "ends")

    def _first_at(self, topic: str, at_ms: int) -> dict[int, int]:
        return self._asked(topic, at_ms, "first_at")

    def _asked(self, topic: str, at_ms: int | None, what: str) -> dict[int, int]:
        from spark_ckpt_kafka.control import ControlError

        try:
            found = self._positions(topic, at_ms, what)
        except ControlError as error:
            raise SourceInvalid(f"topic {topic}: {error.what}", hint=error.hint) from error
        return {partition: offset for (_, partition), offset in sorted(found.items())}

    def _positions(self, topic: str, at_ms: int | None, what: str) -> Positions:
        partitions = self._control.partitions([topic])
        if at_ms is not None:
            return self._control.first_at(partitions, at_ms)
        if what == "ends":
            return self._control.ends(partitions, committed=False)
        return self._control.beginnings(partitions)
