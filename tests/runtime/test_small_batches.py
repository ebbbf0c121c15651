"""How long the batches of a job that is behind stay small."""

from __future__ import annotations

from spark_ckpt.driver.admission import PATIENCE_S, SmallBatches


class Bench:
    """A query whose limits are lifted, its sinks' debts, a clock."""

    def __init__(self, owes: bool) -> None:
        self.owes, self.now_s, self.lifted = owes, 100.0, 0
        self.batches = SmallBatches(self._lift, lambda: self.owes, lambda: self.now_s)

    def _lift(self) -> None:
        self.lifted += 1


def test_one_batch_is_small_where_nothing_is_owed() -> None:
    bench = Bench(owes=False)
    bench.batches.lift_if_due()
    bench.batches.lift_if_due()
    assert bench.lifted == 1


def test_batches_stay_small_while_a_sink_is_owed_epochs_of_the_time_before() -> None:
    bench = Bench(owes=True)
    bench.batches.lift_if_due()
    assert bench.lifted == 0
    bench.owes = False
    bench.batches.lift_if_due()
    assert bench.lifted == 1


def test_a_sink_that_is_away_keeps_batches_small_for_seconds_only() -> None:
    bench = Bench(owes=True)
    bench.now_s += PATIENCE_S - 1
    bench.batches.lift_if_due()
    assert bench.lifted == 0
    bench.now_s += 1
    bench.batches.lift_if_due()
    assert bench.lifted == 1
