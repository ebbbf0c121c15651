"""A standby's look at the job's log and at the process that holds it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from spark_ckpt.coordination.standby import HolderGone, LeaseRead, Standby, TakeOver
from spark_ckpt.store.holder import provably_dead
from spark_ckpt.store.log_state import LogState

if TYPE_CHECKING:
    from spark_ckpt.store.epoch_log import EpochLog

READ_S = 0.25
"""Between two readings of the log: three requests a second to an object store."""

_MARGIN_MS = 250
_LEAST_GAP_MS = 1_000


class Lookout:
    """Feeds the rules with what can be seen from here. `lease_ms`: this driver's own term."""

    def __init__(self, log: EpochLog, lease_ms: int) -> None:
        self._log = log
        self._next_read_s = 0.0
        self.rules = Standby(_MARGIN_MS, max(_LEAST_GAP_MS, lease_ms // 4))
        self.log_state = LogState()
        """As it was read last."""

    def look(self) -> TakeOver | None:
        """Look once: at the process, if it was on this host, and at the log, if it is time or the process is gone. What to
        do about it, if anything. Raises what reading the log raises."""
        if time.monotonic() < self._next_read_s and not self._is_gone():
            return None
        self.log_state = self._log.state()
        self._next_read_s = time.monotonic() + READ_S
        effects = self.rules.handle(_read(self.log_state, round(time.monotonic() * 1000)))
        if not effects and self._is_gone():
            effects = self.rules.handle(HolderGone(self.log_state.incarnation))
        return next((effect for effect in effects if isinstance(effect, TakeOver)), None)

    def _is_gone(self) -> bool:
        return self.log_state.holder is not None and provably_dead(self.log_state.holder)


def _read(log_state: LogState, local_ms: int) -> LeaseRead:
    return LeaseRead(log_state.incarnation, log_state.lease_token, log_state.lease_ms, log_state.is_free, local_ms)
