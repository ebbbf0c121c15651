"""Names the record of a committed epoch that a topic never accepts, after the broker refused something."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_ckpt.connector import RefusedRow
from spark_ckpt.errors import RowsRefused
from spark_ckpt_kafka.control import KafkaControl
from spark_ckpt_kafka.limits import record_rules, topic_limits
from spark_ckpt_kafka.options import Tuning
from spark_ckpt_kafka.producer import ProducerFailed
from spark_ckpt_kafka.record_rules import RecordRules
from spark_ckpt_kafka.rows import ShardRows, VerifiedRows

if TYPE_CHECKING:
    from spark_ckpt_kafka.publishing import ShardRequest


@dataclass(frozen=True)
class Refusals:
    """Explains the refusals of one shard. `topic`: topic of every row; None if each row names its own."""

    control: KafkaControl
    tuning: Tuning
    topic: str | None

    @contextmanager
    def explaining(self, sent: ShardRequest, lane: ShardRows) -> Iterator[None]:
        """Raise `RowsRefused` instead of a `ProducerFailed` that a never accepted record causes."""
        try:
            yield
        except ProducerFailed as failure:
            if not failure.refusal:
                raise
            # The files are read again: the failed attempt has sent its rows on, and keeps none.
            rows = lane.verified(sent.epoch, sent.root, sent.storage_options, sent.parts, lambda: None)
            where = {"epoch": sent.epoch, "sink": lane.sink, "lane": lane.lane}
            raise self.explained(failure, rows, where) from failure

    def explained(
        self, failure: ProducerFailed, rows: VerifiedRows, where: Mapping[str, Any]
    ) -> RowsRefused | ProducerFailed:
        """Return the error that names the record, or `failure` itself if another attempt may succeed.

        The topic's current settings decide. A broker's refusal of a record is final even if no rule names it. Two
        refusals may pass: a batch can be too large although each record fits, and a client may not know a new partition
        yet.
        """
        rules: dict[str, RecordRules] = {}
        for path, row, topic, refused in self._found(rows, rules):
            what = f"topic {topic} never takes a record: its {refused.column} is refused, {refused.why}"
            key = self._key(rows, path, row)
            return RowsRefused(what, hint=refused.hint, topic=topic, file=path, row=row, key=key, **where)
        if failure.refusal != "record":
            return failure
        what = f"the broker refused a record for its content: {failure.what}"
        hint = "the broker's log names the rule: change it, and start the job again"
        return RowsRefused(what, hint=hint, topic=self.topic, record=failure.key, **where)

    def _found(self, rows: VerifiedRows, rules: dict[str, RecordRules]) -> Iterator[tuple[str, int, str, RefusedRow]]:
        for part, first, table in rows.tables():
            for topic, at in _by_topic(table, self.topic):
                # The topic's current limits, once: they may have changed since the task checked the rows.
                if topic not in rules:
                    limits = topic_limits(self.control, topic)
                    rules[topic] = record_rules(topic, self.tuning, limits, rows.rows.stamp)
                found = rules[topic](table if len(at) == table.num_rows else table.take(pa.array(at)))
                if found is not None:
                    yield part.path, first + int(at[found.row]), topic, found

    def _key(self, rows: VerifiedRows, path: str, row: int) -> str | None:
        for part, first, table in rows.tables():
            if part.path == path and first <= row < first + table.num_rows:
                value = table.column("key")[row - first].as_py() if "key" in table.column_names else None
                return None if value is None else repr(value[:80])
        return None


def _by_topic(table: pa.Table, topic: str | None) -> Iterator[tuple[str, np.ndarray[tuple[int], np.dtype[np.int64]]]]:
    """Yield each topic with the numbers of its rows."""
    if topic is not None:
        yield topic, np.arange(table.num_rows)
        return
    topics = table.column("topic")
    for name in pc.unique(topics.drop_null()).to_pylist():
        yield name, np.flatnonzero(pc.fill_null(pc.equal(topics, name), False).to_numpy())
