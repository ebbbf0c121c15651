"""The sizes of a run: durations, numbers of records, repeats."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Window:
    """The measurement begins `warm_up_s` after the first committed record and lasts `measured_s`."""

    warm_up_s: float
    measured_s: float


@dataclass(frozen=True)
class Plan:
    """`interval_ms`: between commits, for throughput and recovery. `rate`: inputs per second, for latency and parts. `events`: in
    NEXMark's topic.
    """

    records: int = 20_000_000
    events: int = 10_000_000
    interval_ms: int = 5000
    throughput: Window = field(default_factory=lambda: Window(20, 20))
    latency_interval_ms: int = 1000
    latency: Window = field(default_factory=lambda: Window(90, 30))
    rate: int = 10_000

    @property
    def paced_records(self) -> int:
        """More records than are written until a slow starter's window is over."""
        return int(self.rate * (240 + self.latency.warm_up_s + self.latency.measured_s))


QUICK = Plan(
    records=500_000, events=500_000, interval_ms=2000, throughput=Window(3, 8), latency=Window(5, 8), rate=1000
)  # fmt: skip
"""A test that everything works. The numbers are warm-up."""
