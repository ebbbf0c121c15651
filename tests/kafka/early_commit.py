"""A lane that does not wait for the commit: planted over a model of a broker, and over a real one."""

from __future__ import annotations

from spark_ckpt_kafka.publishing import ShardPublisher, ShardRequest


class CommitsAtOnce(ShardPublisher):
    """A planted bug: does not wait for the commit."""

    def send_early(self, request: ShardRequest) -> int:
        sent = super().send_early(request)
        if (transaction := self._early.take()) is not None:
            transaction.producer.commit()
        return sent
