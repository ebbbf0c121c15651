"""The reference page of the Python API, generated from `spark_ckpt.__all__`. `python -m spark_ckpt.pages.python` prints it.

mkdocstrings puts signatures and docstrings in place of the `:::` lines.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

import spark_ckpt
from spark_ckpt import connectors
from spark_ckpt.tasks.operators import aggregations

_GROUPS = {
    "Jobs": ("Job", "session", "Run", "StagesRun", "SparkSource", "Edge"),
    "Streams": ("Stream", "GroupedStream", "CoGroupedStreams"),
    "Functions on all keys of a group": ("KeyBatch", "KeyResult"),
    "State": ("read_state", "state_frame", "state_version"),
    "Plain queries": ("Outbox", "SinkRows", "OutboxDataSource"),
    "Listeners": (
        "RunListener", "EpochEvent", "IncarnationEvent", "LagEvent", "LineEvent", "OutageEvent", "ProgressEvent", "RetryEvent",
        "StandbyEvent", "MaintenanceEvent",
    ),
    "Errors": ("CkptError",),
}  # fmt: skip
_HEAD = """# Python

This page lists the public names of `spark_ckpt` (`import spark_ckpt as ckpt`), and the sources and sinks. Other pages list the
[settings](settings.md) of a job, the [errors](errors.md), and the types for [writing a connector](writing-a-connector.md).
"""
_AGGREGATES = """## Aggregates

Pass aggregates to `groupBy(...).agg(...)`, each with the name of its output column, such as
`agg(total=ckpt.sum("amount"), n=ckpt.count())`. You may pass Spark's functions, too: `agg(total=F.sum("amount"))`,
`agg(F.avg("amount").alias("mean"))`.

| function | result |
|---|---|"""


def python_page() -> str:
    """Return the text of `docs/api.md`. Raises `LookupError` for a public name without a place on it."""
    aggregates = sorted(name for name in spark_ckpt.__all__ if hasattr(aggregations, name) and name.islower())
    placed = {name for names in _GROUPS.values() for name in names} | {*aggregates, "Aggregate", "__version__"}
    if left := set(spark_ckpt.__all__) ^ placed:
        raise LookupError(f"give each a group in {__name__}: {sorted(left)}")
    return "\n".join([_HEAD, *_sections(aggregates)])


def _sections(aggregates: list[str]) -> Iterator[str]:
    for title, names in _GROUPS.items():
        yield f"## {title}\n"
        for name in names:
            yield f"::: {getattr(spark_ckpt, name).__module__}.{name}\n"
        if title == "Streams":
            yield _AGGREGATES
            yield from (f"| `{_call(name)}` | {_first_line(name)} |" for name in aggregates)
            yield ""
    yield "## Sources and sinks\n"
    for connector in connectors.names():
        found = connectors.named(connector)
        for each in (*found.sources(), *found.sinks()):
            yield f"::: {each.__module__}.{each.__name__}\n"


def _call(name: str) -> str:
    parameters = inspect.signature(getattr(aggregations, name)).parameters.values()
    return f"{name}({', '.join(str(each.replace(annotation=each.empty)) for each in parameters)})"


def _first_line(name: str) -> str:
    return (inspect.getdoc(getattr(aggregations, name)) or "").partition("\n\n")[0].replace("\n", " ")


if __name__ == "__main__":
    sys.stdout.write(python_page())
