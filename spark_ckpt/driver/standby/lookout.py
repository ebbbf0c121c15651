"""A standby's view of the job's log and of the process that holds the lease."""

from __future__ import annotations

import time

from spark_ckpt.coordination.standby import HolderGone, LeaseRead, Standby, TakeOver
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.holder import provably_dead

READ_S = 0.25
"""Seconds between two reads of the log: three requests a second to an object store."""

_MARGIN_MS = 250
_LEAST_GAP_MS = 1_000


class Lookout:
    """Feeds the standby's rules with observations. `lease_ms`: this driver's own term."""

    def __init__(self, log: EpochLog, lease_ms: int) -> None:
        self._log = log
        self._next_read_s = 0.0
        self._gone_of = 0
        self.rules = Standby(_MARGIN_MS, max(_LEAST_GAP_MS, lease_ms // 4))
        self.log_state = LogState()
        """Newest state of the log that was read."""

    def look(self) -> TakeOver | None:
        """Check the holder's process, if it ran on this host; read the log if that is due or the process is gone.

        Return the takeover that the rules request, or None. Raises the errors of a log read.
        """
        if time.monotonic() < self._next_read_s and not self._has_just_gone():
            return None
        try:
            self.log_state = self._log.state()
        finally:
            # Also after an error: otherwise each look of an outage, twenty in a second, would ask the store again.
            self._next_read_s = time.monotonic() + READ_S
        effects = self.rules.handle(_read(self.log_state, round(time.monotonic() * 1000)))
        if not effects and self._is_gone():
            # Only after a read: another driver may have replaced the dead holder.
            effects = self.rules.handle(HolderGone(self.log_state.incarnation))
        return next((effect for effect in effects if isinstance(effect, TakeOver)), None)

    def _has_just_gone(self) -> bool:
        """Return true once for each holder whose process is gone."""
        # Once: in an outage, or behind a restore that was killed, nothing can be taken over, and each look would read the log.
        if self._gone_of == self.log_state.incarnation or not self._is_gone():
            return False
        self._gone_of = self.log_state.incarnation
        return True

    def _is_gone(self) -> bool:
        return self.log_state.holder is not None and provably_dead(self.log_state.holder)


def _read(log_state: LogState, local_ms: int) -> LeaseRead:
    return LeaseRead(log_state.incarnation, log_state.lease_token, log_state.lease_ms, log_state.is_free, local_ms)
