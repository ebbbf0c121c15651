"""No lane of an epoch publishes before every lane's rows are verified.

Lanes are transactions of their own.  If one published while another's rows are damaged, going back to the epoch before
would repeat its rows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from spark_ckpt.errors import EpochDamaged, PublishFailed


class Gate:
    """For one epoch: opens when every lane has arrived or left, and stays shut when one left because of damage."""

    def __init__(self, lanes: int) -> None:
        self._awaited = set(range(lanes))
        self._damage: EpochDamaged | None = None
        self._changed = threading.Condition()

    def arrive(self, lane: int) -> None:
        """The lane's rows are verified; returns when it may publish. Raises `PublishFailed` if the epoch must not be."""
        with self._changed:
            self._awaited.discard(lane)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._awaited or self._damage is not None)
            if self._damage is not None:
                raise PublishFailed("rows of another lane are damaged")

    @contextmanager
    def leaving(self, lane: int) -> Iterator[None]:
        """However the lane ends, others do not wait for it any longer."""
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
