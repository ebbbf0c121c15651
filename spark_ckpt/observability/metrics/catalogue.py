"""Every metric of a run, defined once: its names in Prometheus and OpenTelemetry, its unit, its labels.

Names follow each system's conventions. Prometheus: base units (seconds, bytes) as a suffix, and `_total` for counters.
OpenTelemetry: dots, and a separate unit. Every series has the label `ckpt_job`, because Prometheus uses `job` for the
target that it scrapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

PREFIX = "spark_ckpt"


class MetricKind(Enum):
    """Kind of a metric, which defines how its values aggregate."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric.

    - `name`: OpenTelemetry's name after the prefix.
    - `unit`: in UCUM, with braces around counted things.
    - `labels`: in addition to the job's.
    """

    name: str
    kind: MetricKind
    unit: str
    description: str
    labels: tuple[str, ...] = ()

    @property
    def otel_name(self) -> str:
        """Name in OpenTelemetry."""
        return f"{PREFIX}.{self.name}"

    @property
    def prometheus_name(self) -> str:
        """Name in Prometheus queries. The series of a histogram add `_bucket`, `_sum`, `_count`."""
        total = "_total" if self.kind is MetricKind.COUNTER else ""
        return f"{PREFIX}_{self.name.replace('.', '_')}{_SUFFIXES.get(self.unit, '')}{total}"

    @property
    def label_names(self) -> tuple[str, ...]:
        """All labels, the job's first."""
        return ("ckpt_job", *self.labels)


_SUFFIXES = {"s": "_seconds", "By": "_bytes"}

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
"""Upper bounds of histogram buckets: from a fast commit to the longest epoch that the default settings allow."""


def _counter(name: str, unit: str, description: str, *labels: str) -> Instrument:
    return Instrument(name, MetricKind.COUNTER, unit, description, labels)


def _gauge(name: str, unit: str, description: str, *labels: str) -> Instrument:
    return Instrument(name, MetricKind.GAUGE, unit, description, labels)


def _histogram(name: str, description: str, *labels: str) -> Instrument:
    return Instrument(name, MetricKind.HISTOGRAM, "s", description, labels)


INPUT_ROWS = _counter("input.rows", "{row}", "Rows that sources have delivered to micro-batches")
OUTPUT_ROWS = _counter("output.rows", "{row}", "Rows that were staged for the first sink")
REJECTED_ROWS = _counter("rejected.rows", "{row}", "Records that could not be parsed")
LATE_ROWS = _counter("late.rows", "{row}", "Rows that an operator dropped as late, below the watermark", "operator")
WATERMARK = _gauge("watermark.timestamp", "s", "Watermark of the last micro-batch, in seconds since 1970")
BATCHES = _counter("batches", "{batch}", "Micro-batches that are over")
BATCH_DURATION = _histogram("batch.duration", "From the beginning of a micro-batch to its end")
BATCH_PARTS = _histogram(
    "batch.part.duration",
    "Parts of a micro-batch: Spark's own phases by its names, and of the action fetch, operator, snapshot, staging",
    "part",
)
OUTBOX_BATCHES = _counter(
    "outbox.batches",
    "{batch}",
    "Batches of an outbox, by verdict: new, again (committed before; Spark repeats it), rewound",
    "verdict",
)
EPOCHS_COMMITTED = _counter("epochs.committed", "{epoch}", "Committed epochs", "reason")
EPOCHS_ABORTED = _counter("epochs.aborted", "{epoch}", "Aborted epochs; their rows belong to the next one")
EPOCHS_PUBLISHED = _counter("epochs.published", "{epoch}", "Epochs that a sink has got", "sink")
STAGED_ROWS = _counter("staged.rows", "{row}", "Rows that an outbox has staged for a sink", "sink")
PUBLISHED_ROWS = _counter("published.rows", "{row}", "Rows that a sink has got", "sink")
EPOCH_PARTS = _histogram(
    "epoch.part.duration",
    "Parts of an epoch: barrier (until its batch begins), snapshot (its batch), staging (an outbox's batch), decision, "
    "publish (per sink)",
    "part",
    "sink",
)
PUBLISH_PARTS = _histogram(
    "publish.part.duration",
    "Parts of a publication, of sinks that report them; Kafka's are init, verify, send, commit",
    "part",
    "sink",
)
LAST_EPOCH = _gauge("last.epoch", "{epoch}", "Number of the newest committed epoch")
LAST_EPOCH_AT = _gauge("last.epoch.timestamp", "s", "Commit time of the newest epoch, in seconds since 1970")
LAST_PUBLISH_AT = _gauge(
    "last.publish.timestamp", "s", "Time at which a sink got its newest epoch, in seconds since 1970", "sink"
)
UNPUBLISHED = _gauge("unpublished.epochs", "{epoch}", "Committed epochs that a sink may publish and has not", "sink")
STATE_SIZE = _gauge("state.size", "By", "Size of an operator's state in the newest epoch", "operator")
IN_FLIGHT_ROWS = _gauge("in.flight.rows", "{row}", "Rows on an edge after the last micro-batch", "edge")
LAG_ROWS = _gauge("source.lag.rows", "{row}", "Rows that wait at a source, of sources that can count them", "source")
PROGRAM_LINE = _gauge(
    "program.line.timestamp",
    "s",
    "Newest line that a stage, this job or a sender serves, in seconds since 1970",
    "program",
)
COMMON_LINE = _gauge(
    "common.line.timestamp", "s", "Newest line that all of these programs serve, in seconds since 1970"
)
INCARNATION = _gauge("incarnation", "{incarnation}", "Number of the incarnation that runs, or ran last")
INCARNATIONS = _counter("incarnations.started", "{incarnation}", "Incarnations that began in this process")
RUNNING = _gauge("running", "1", "1 while an incarnation runs, else 0")
STANDBY = _gauge("standby", "1", "1 while this program is a standby of the job, else 0")
STANDBY_WARM = _gauge("standby.warm", "1", "1 while it waits and the job's own plan has run here, else 0")
RETRIES = _counter(
    "retries", "{attempt}", "Failed attempts that an outbox repeats; sink is empty for its log", "sink", "condition"
)
OUTAGE = _gauge("outage", "1", "1 while the job waits for its store or a disk, else 0")
OUTAGES = _counter("outage.attempts", "{attempt}", "Attempts that an outage has failed", "condition")

CATALOGUE: Mapping[str, Instrument] = {
    each.name: each
    for each in (
        INPUT_ROWS, OUTPUT_ROWS, REJECTED_ROWS, LATE_ROWS, WATERMARK, BATCHES, BATCH_DURATION, BATCH_PARTS,
        OUTBOX_BATCHES,
        EPOCHS_COMMITTED, EPOCHS_ABORTED, EPOCHS_PUBLISHED, STAGED_ROWS, PUBLISHED_ROWS, EPOCH_PARTS, PUBLISH_PARTS,
        LAST_EPOCH, LAST_EPOCH_AT, LAST_PUBLISH_AT, UNPUBLISHED, STATE_SIZE, IN_FLIGHT_ROWS, LAG_ROWS,
        PROGRAM_LINE, COMMON_LINE, INCARNATION, INCARNATIONS, RUNNING, STANDBY, STANDBY_WARM, RETRIES, OUTAGE, OUTAGES,
    )
}  # fmt: skip
"""All metrics, by name."""
