"""Oracle of the restart policy: the shipped policy decides after each incarnation, and its verdict is judged.

Time, in seconds, advances only with incarnations and pauses, so that an outage lasts as long as its pauses.
"""

from __future__ import annotations

from checkpoint_lab.violations import ensure
from spark_ckpt.coordination.patience import Ended, Patience, Pause
from spark_ckpt.errors import CkptError, StoreOutage

FAILURES, PATIENCE_S, FIRST_PAUSE_S, LONGEST_PAUSE_S = 2, 300.0, 60.0, 200.0


class SparkRun:
    """One program: incarnation after incarnation until one stops, or until patience ends."""

    def __init__(self) -> None:
        self._patience = Patience(FAILURES, PATIENCE_S, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._now_s = 0.0
        self._failures = 0
        self._waited_s = 0.0

    def goes_on(self, error: CkptError, lived_s: float, progressed: bool, committed: bool) -> bool:
        """Return True if another incarnation follows.

        `progressed`: the rules' report; `committed`: it committed an epoch.

        O10: one follows exactly as long as failures and outages are within their bounds.
        """
        self._now_s += lived_s
        verdict = self._patience.after(Ended(error, self._now_s, lived_s, progressed))
        within = self._within(error, lived_s, committed)
        ensure(
            isinstance(verdict, Pause) == within, "O10", f"{verdict} after {error.condition}, committed: {committed}"
        )
        if isinstance(verdict, Pause):
            self._now_s += verdict.pause_s
            self._waited_s += verdict.pause_s if isinstance(error, StoreOutage) else 0.0
        return within

    def _within(self, error: CkptError, lived_s: float, committed: bool) -> bool:
        outage = isinstance(error, StoreOutage)
        if committed:
            self._failures = 0
        # a committed epoch, a failure of another kind or a long run ends the outage
        if committed or not outage or lived_s >= PATIENCE_S:
            self._waited_s = 0.0
        if outage:
            return self._waited_s < PATIENCE_S
        self._failures += 1
        return error.retriable and self._failures <= FAILURES
