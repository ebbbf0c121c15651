"""A sink of output mode "complete" has the result after the last batch of its newest published epoch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ckpt.connector import StagedFile
from spark_ckpt.coordination.cut import EpochBuilder
from spark_ckpt.coordination.job_shape import JobShape, Limits, SinkPlace
from spark_ckpt.coordination.manifests import Lineage, manifest_of
from spark_ckpt.coordination.publication import DeferredRows
from spark_ckpt.coordination.reports import Report
from spark_ckpt.epochs.identity import Standing
from spark_ckpt.epochs.records import Manifest

EMPTY = Manifest(job="job", epoch=0, incarnation=0, attempt="-", created_ms=0)
EVERY_MS = 1000


@dataclass
class Run:
    """The rules of one sink between its batches and its publishes, and the table that the publishes write.

    A batch of number n has the result `n`, or none. `replaces`: False plants the bug that the rules ignore it.
    """

    replaces: bool = True
    table: list[str] = field(default_factory=list)
    batch: int = 0
    epoch: int = 0
    now_ms: float = 0.0
    newest: list[str] = field(default_factory=list)
    at_barrier: list[str] | None = None

    def __post_init__(self) -> None:
        place = SinkPlace("", publish_every_ms=EVERY_MS, replaces=self.replaces)
        self._shape = JobShape("job", (), {"out": place}, (), Limits())
        self._builder = EpochBuilder(EMPTY, {}, "out", (), self._shape.replaced)
        self._deferred = DeferredRows(self._shape.sinks, EMPTY)

    @property
    def due_in_ms(self) -> float | None:
        return self._deferred.due_in_ms(self.now_ms)

    def run_batch(self, rows: int) -> None:
        self.batch += 1
        self.newest = [f"{self.batch}.{part}" for part in range(rows)]
        files = [StagedFile(path, 10, 1, 0, self.batch, 0, part) for part, path in enumerate(self.newest)]
        self._builder.add(0, [Report("tap", 0, 1, "out", asdict(file)) for file in files])

    def end(self) -> None:
        if self.at_barrier is None and self.batch:
            self.epoch += 1
            self._builder.end(self.epoch, {})
            self.at_barrier = self.newest

    def abort(self) -> None:
        if self.at_barrier is not None:
            self._builder.aborted(self.epoch)
            self.at_barrier = None

    def commit(self, later_ms: float, reason: str) -> list[str] | None:
        """Commit the ended epoch; return the expected rows of the table, None if its rows are deferred."""
        if self.at_barrier is None:
            return None
        self.now_ms += later_ms
        lineage = Lineage(1, 0, 0, self.now_ms, 0, self._deferred, Standing())
        manifest = manifest_of(self._shape, self._builder.take(self.epoch), lineage, reason, ())
        self._builder.committed(self.epoch)
        self._deferred.committed(manifest, self.now_ms)
        wanted, self.at_barrier = self.at_barrier, None
        if "out" not in manifest.outputs:
            return None
        output = manifest.outputs["out"]
        published = [file.path for file in output.files]
        self.table = published if output.replaces else self.table + published
        return wanted


STEPS = st.one_of(
    st.tuples(st.just("run_batch"), st.integers(0, 2)),
    st.tuples(st.sampled_from(["end", "abort"])),
    st.tuples(st.just("commit"), st.sampled_from([10.0, 2000.0]), st.sampled_from(["interval", "savepoint", "stop"])),
)


def judge(run: Run, steps: list[tuple[object, ...]]) -> None:
    for name, *arguments in steps:
        wanted = getattr(run, str(name))(*arguments)
        if wanted is not None:
            assert run.table == wanted, f"after {name} in {steps}"


@given(st.lists(STEPS, max_size=30))
@settings(deadline=None)
def test_the_table_shows_the_last_batch_of_the_published_epoch(steps: list[tuple[object, ...]]) -> None:
    judge(Run(), steps)


TWO_BATCHES = [("run_batch", 1), ("run_batch", 1), ("end",), ("commit", 10.0, "interval")]


def test_the_verdict_finds_planted_rules_that_append() -> None:
    with pytest.raises(AssertionError, match="after commit"):
        judge(Run(replaces=False), TWO_BATCHES)


def test_an_aborted_epoch_is_replaced_by_the_batch_after_it() -> None:
    judge(Run(), [("run_batch", 2), ("end",), ("run_batch", 1), ("abort",), ("end",), ("commit", 10.0, "interval")])


def test_an_aborted_epoch_without_a_later_batch_keeps_its_result() -> None:
    judge(Run(), [("run_batch", 2), ("end",), ("abort",), ("end",), ("commit", 10.0, "interval")])


def test_an_empty_result_is_published_when_it_is_due() -> None:
    run = Run()
    judge(run, [("run_batch", 2), ("end",), ("commit", 0.0, "interval"), ("run_batch", 0), ("end",)])
    assert run.commit(10.0, "interval") is None
    assert run.due_in_ms == EVERY_MS - 10
