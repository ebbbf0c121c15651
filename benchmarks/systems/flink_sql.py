"""Flink SQL, exactly once: the job is a query, all of it runs in the JVM. What the machine can do at most.

The job's text is a query on `input`; its columns are those of the output's value, `key` is also the Kafka key.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.systems import Run, System
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
    tables.execute_sql(f"CREATE TABLE input ({COLUMNS}) WITH ({_options(_source(run))})")
    tables.execute_sql(f"CREATE TABLE output WITH ({_options(_target(run))}) AS {run.implementation}").wait()


def _source(run: Run) -> dict[str, str]:
    return {
        "connector": "kafka",
        "topic": run.source,
        "properties.bootstrap.servers": run.servers,
        "properties.group.id": run.target,
        "scan.startup.mode": "earliest-offset",
        "value.format": "csv",
    }


def _target(run: Run) -> dict[str, str]:
    producer = {f"properties.{name}": value for name, value in PRODUCER.items()}
    return producer | {
        "connector": "kafka",
        "topic": run.target,
        "properties.bootstrap.servers": run.servers,
        "key.format": "raw",
        "key.fields": "key",
        "value.format": "csv",
        "value.fields-include": "ALL",
        "sink.delivery-guarantee": guarantee(run),
        "sink.transactional-id-prefix": run.target,
    }


def _options(options: Mapping[str, str]) -> str:
    return ", ".join(f"'{name}' = '{value}'" for name, value in options.items())


if __name__ == "__main__":
    main()
