"""Flink SQL, exactly once: the job is a query, and all of it runs in the JVM. It shows the most that this machine can do.

The job's text is a query on `input`; its columns are those of the output's value, `key` is also the Kafka key.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.nexmark import tables as nexmark
from benchmarks.systems import Run, System, is_nexmark, job_module
from benchmarks.systems.flink_cluster import ENVIRONMENT, PRODUCER, configuration, guarantee, prepare

SYSTEMS: tuple[System, ...] = (
    System("flink_sql", "Flink SQL", "flink_sql", "exactly-once", ENVIRONMENT, "benchmarks.systems.flink_sql"),
)
# `at` orders the rows of an OVER window as they arrive.
COLUMNS = "`key` STRING, n BIGINT, amount BIGINT, event_ms BIGINT, `at` AS PROCTIME()"


def main() -> None:
    """Run one job until killed."""
    run = Run.of_command_line()
    prepare(run)
    from pyflink.table import EnvironmentSettings, TableEnvironment

    settings = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration(run)).build()
    tables = TableEnvironment.create(settings)
    if is_nexmark(run.job):
        for name, value in nexmark.SETTINGS.items():
            tables.get_config().set(name, value)
    *before, last = nexmark_statements(run) if is_nexmark(run.job) else statements(run)
    for statement in before:
        tables.execute_sql(statement)
    tables.execute_sql(last).wait()


def statements(run: Run) -> tuple[str, ...]:
    """Statements of the program; the last one is the job."""
    target = _target(run) | KEYED
    return (
        f"CREATE TABLE input ({COLUMNS}) WITH ({_options(_source(run, 'csv'))})",
        f"CREATE TABLE output WITH ({_options(target)}) AS {run.implementation}",
    )


def nexmark_statements(run: Run) -> tuple[str, ...]:
    """A running answer (`flink_columns`) is upserted by key; an append-only answer is inserted."""
    events = f"CREATE TABLE events ({nexmark.INPUT}) WITH ({_options(_source(run, 'json'))})"
    running = getattr(job_module(run.job), "flink_columns", None)
    if running is None:
        target = _target(run) | {"connector": "kafka", "value.format": "json"}
        return events, *nexmark.VIEWS, f"CREATE TABLE output WITH ({_options(target)}) AS {run.implementation}"
    target = _target(run) | {"connector": "upsert-kafka", "key.format": "csv", "value.format": "json"}
    output = f"CREATE TABLE output ({running}) WITH ({_options(target)})"
    return events, *nexmark.VIEWS, output, f"INSERT INTO output {run.implementation}"


def _source(run: Run, value_format: str) -> dict[str, str]:
    return {
        "connector": "kafka",
        "topic": run.source,
        "properties.bootstrap.servers": run.servers,
        "properties.group.id": run.target,
        "scan.startup.mode": "earliest-offset",
        "value.format": value_format,
    }


KEYED = {
    "connector": "kafka",
    "key.format": "raw",
    "key.fields": "key",
    "value.format": "csv",
    "value.fields-include": "ALL",
}


def _target(run: Run) -> dict[str, str]:
    producer = {f"properties.{name}": value for name, value in PRODUCER.items()}
    return producer | {
        "topic": run.target,
        "properties.bootstrap.servers": run.servers,
        "sink.delivery-guarantee": guarantee(run),
        "sink.transactional-id-prefix": run.target,
    }


def _options(options: Mapping[str, str]) -> str:
    return ", ".join(f"'{name}' = '{value}'" for name, value in options.items())


if __name__ == "__main__":
    main()
