"""A gate between verifying and publishing: no shard of an epoch publishes before the rows of every shard are verified.

Shards are separate transactions. If one publishes while another's rows are damaged, a restore of the previous epoch
publishes its rows twice.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from spark_ckpt.errors import EpochDamaged, PublishFailed


class Gate:
    """Gate of one epoch. Opens when every shard has arrived or left; stays shut when a shard left because of damage."""

    def __init__(self, lanes: int) -> None:
        self._awaited = set(range(lanes))
        self._damage: EpochDamaged | None = None
        self._changed = threading.Condition()

    def arrive(self, lane: int) -> None:
        """Report that the rows of shard `lane` are verified, and wait until it may publish.

        Raises `PublishFailed` if the rows of another shard are damaged.
        """
        with self._changed:
            self._awaited.discard(lane)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._awaited or self._damage is not None)
            if self._damage is not None:
                raise PublishFailed("rows of another lane are damaged")

    @contextmanager
    def leaving(self, lane: int) -> Iterator[None]:
        """Stop the wait of the other shards for this one when the block ends, with or without an error."""
        try:
            yield
        except EpochDamaged as damage:
            with self._changed:
                self._damage = damage
            raise
        finally:
            with self._changed:
                self._awaited.discard(lane)
                self._changed.notify_all()
