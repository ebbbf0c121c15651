"""The table of metrics in `docs/monitoring.md`. `python -m spark_ckpt.pages.metrics` prints it."""

from __future__ import annotations

import sys

from spark_ckpt.observability.metrics.catalogue import CATALOGUE


def metrics_table() -> str:
    """Return one line for each metric: both names, kind, unit, labels, meaning."""
    head = ["| Prometheus | OpenTelemetry | kind | labels | what |", "|---|---|---|---|---|"]
    rows = [
        f"| `{each.prometheus_name}` | `{each.otel_name}` ({each.unit}) | {each.kind.value} | {', '.join(each.labels)} |"
        f" {each.description} |"
        for each in CATALOGUE.values()
    ]
    return "\n".join([*head, *rows]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(metrics_table())
