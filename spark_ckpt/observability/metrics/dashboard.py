"""The Grafana dashboard, generated from the catalogue. `python -m spark_ckpt.observability.metrics.dashboard` prints
it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from spark_ckpt.connector import Json
from spark_ckpt.observability.metrics import catalogue
from spark_ckpt.observability.metrics.catalogue import Instrument, MetricKind

_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_CHOSEN = '{ckpt_job=~"$job"}'
_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 3


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `queries`: pairs of PromQL and legend. `unit`: Grafana's name of the unit."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    description: str = ""
    kind: str = "timeseries"


def _rate(instrument: Instrument) -> str:
    """Return PromQL for the rate per second; counters only."""
    return f"rate({instrument.prometheus_name}{_CHOSEN}[$__rate_interval])"


def _now(instrument: Instrument) -> str:
    return f"{instrument.prometheus_name}{_CHOSEN}"


def _quantile(share: float, instrument: Instrument, by: str) -> str:
    buckets = f"{instrument.prometheus_name}_bucket{_CHOSEN}"
    return f"histogram_quantile({share}, sum by (le, {by}) (rate({buckets}[$__rate_interval])))"


def _line(instrument: Instrument, *labels: str) -> tuple[str, str]:
    legend = " ".join(f"{{{{{label}}}}}" for label in ("ckpt_job", *labels))
    return (_rate(instrument) if instrument.kind is MetricKind.COUNTER else _now(instrument), legend)


def _share(name: str, share: float) -> tuple[str, str]:
    """Return the query for the duration that a share of the micro-batches stays below."""
    return _quantile(share, catalogue.BATCH_DURATION, "ckpt_job"), f"{{{{ckpt_job}}}} {name}"


PANELS = (
    Panel("Running", "none", (_line(catalogue.RUNNING),), kind="stat"),
    Panel("Newest epoch", "none", (_line(catalogue.LAST_EPOCH),), kind="stat"),
    Panel(
        "Since the newest epoch",
        "s",
        ((f"time() - {_now(catalogue.LAST_EPOCH_AT)}", "{{ckpt_job}}"),),
        "An idle job takes no epochs.",
        kind="stat",
    ),
    Panel("Rows in", "rowsps", (_line(catalogue.INPUT_ROWS),)),
    Panel("Rows out", "rowsps", (_line(catalogue.OUTPUT_ROWS), _line(catalogue.PUBLISHED_ROWS, "sink"))),
    Panel("Rows that wait at the sources", "short", (_line(catalogue.LAG_ROWS, "source"),)),
    Panel(
        "Parts of an epoch, 95 %",
        "s",
        ((_quantile(0.95, catalogue.EPOCH_PARTS, "ckpt_job, part"), "{{ckpt_job}} {{part}}"),),
        "barrier: until its batch begins; snapshot: that batch; staging: an outbox's batch; decision: the manifest's commit; "
        "publish: per sink.",
    ),
    Panel(
        "Parts of a micro-batch, 95 %",
        "s",
        ((_quantile(0.95, catalogue.BATCH_PARTS, "ckpt_job, part"), "{{ckpt_job}} {{part}}"),),
        "Spark's phases by its names; of the action fetch, operator, snapshot, staging.",
    ),
    Panel(
        "Parts of a publication, 95 %",
        "s",
        ((_quantile(0.95, catalogue.PUBLISH_PARTS, "ckpt_job, sink, part"), "{{ckpt_job}} {{sink}} {{part}}"),),
    ),
    Panel("Micro-batches", "s", tuple(_share(name, share) for name, share in (("half", 0.5), ("99 %", 0.99)))),
    Panel(
        "Epochs",
        "epm",
        (
            (f"60 * {_rate(catalogue.EPOCHS_COMMITTED)}", "{{ckpt_job}} {{reason}}"),
            (f"60 * {_rate(catalogue.EPOCHS_ABORTED)}", "{{ckpt_job}} aborted"),
        ),
    ),
    Panel("State", "bytes", (_line(catalogue.STATE_SIZE, "operator"),)),
    Panel("Committed epochs that a sink may publish and has not", "short", (_line(catalogue.UNPUBLISHED, "sink"),)),
    Panel(
        "Rows left out",
        "rowsps",
        (
            (_rate(catalogue.LATE_ROWS), "{{ckpt_job}} late at {{operator}}"),
            (_rate(catalogue.REJECTED_ROWS), "{{ckpt_job}} rejected"),
        ),
    ),
    Panel(
        "Since the newest publish",
        "s",
        ((f"time() - {_now(catalogue.LAST_PUBLISH_AT)}", "{{ckpt_job}} {{sink}}"),),
        "An idle job or query publishes nothing.",
    ),
    Panel(
        "Batches of an outbox",
        "short",
        ((f"60 * {_rate(catalogue.OUTBOX_BATCHES)}", "{{ckpt_job}} {{verdict}} per min"),),
        "new; again: committed before, repeated by Spark after a restart; rewound.",
    ),
    Panel("Rows staged by an outbox", "rowsps", (_line(catalogue.STAGED_ROWS, "sink"),)),
    Panel(
        "Attempts that an outbox repeats",
        "short",
        ((_rate(catalogue.RETRIES), "{{ckpt_job}} {{sink}} {{condition}} per s"),),
    ),
    Panel("Since the watermark", "s", ((f"time() - {_now(catalogue.WATERMARK)}", "{{ckpt_job}}"),)),
    Panel("Incarnations", "short", (_line(catalogue.INCARNATION),)),
    Panel(
        "Standbys",
        "none",
        ((_now(catalogue.STANDBY), "{{ckpt_job}} waits"), (_now(catalogue.STANDBY_WARM), "{{ckpt_job}} is warm")),
        "1 at every standby of the job.",
    ),
    Panel(
        "Outages", "short", (_line(catalogue.OUTAGE), (_rate(catalogue.OUTAGES), "{{ckpt_job}} {{condition}} per s"))
    ),
    Panel("Rows on edges", "short", (_line(catalogue.IN_FLIGHT_ROWS, "edge"),)),
    Panel(
        "Since the newest line",
        "s",
        (
            (f"time() - {_now(catalogue.COMMON_LINE)}", "{{ckpt_job}} in common"),
            (f"time() - {_now(catalogue.PROGRAM_LINE)}", "{{ckpt_job}}: {{program}}"),
        ),
        "The oldest program holds up the line of all.",
    ),
)


def dashboard() -> dict[str, Json]:
    """Return the dashboard in the form that Grafana imports."""
    return {
        "title": "spark_ckpt",
        "uid": "spark-ckpt",
        "tags": ["spark", "streaming"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": list(_variables())},
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }


def _variables() -> Iterator[Json]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}
    labels = f"label_values({catalogue.RUNNING.prometheus_name}, ckpt_job)"
    yield {
        "name": "job", "type": "query", "label": "Job", "datasource": _DATASOURCE, "query": {"query": labels, "refId": "job"},
        "refresh": 2, "multi": True, "includeAll": True, "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def _panel(number: int, panel: Panel) -> Json:
    place = {"x": number % _COLUMNS * _WIDTH, "y": number // _COLUMNS * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
    targets: list[Json] = [
        {"refId": chr(ord("A") + each), "datasource": _DATASOURCE, "expr": query, "legendFormat": legend}
        for each, (query, legend) in enumerate(panel.queries)
    ]
    return {
        "id": number + 1,
        "title": panel.title,
        "description": panel.description,
        "type": panel.kind,
        "datasource": _DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(dashboard(), indent=1) + "\n")
