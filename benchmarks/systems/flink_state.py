"""Flink SQL with RocksDB and incremental checkpoints: a running sum over many keys, from numbered rows that it generates.

The first rows bring every key once. Later rows change the same 1 % of the keys, as `benchmarks.inside.state_size` does. It runs
until killed, and continues from its newest checkpoint.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.systems import Run
from benchmarks.systems.flink_cluster import configuration, prepare

SHARE = 100
_EACH_TASK = 1_000_000_000_000
"""Numbers of a task: one task has the first half of the sequence, the other the second half."""
_TASKS = 2
_SETTINGS = {
    "state.backend.type": "rocksdb",
    "execution.checkpointing.incremental": "true",
    # Without it the first checkpoint after a restart writes the whole state.
    "execution.state-recovery.claim-mode": "CLAIM",
    # RocksDB's caches and write buffers. The default of a local cluster is 128 MiB.
    "taskmanager.memory.managed.size": "2 gb",
    # The default of ten seconds is too rare for this measurement.
    "metrics.fetcher.update-interval": "500",
}
_ROW = f"MOD(f0, {_EACH_TASK}) * {_TASKS} + f0 / {_EACH_TASK}"


def main() -> None:
    """Run the job; its REST interface listens at the port."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--port", required=True)
    parser.add_argument("--interval-ms", type=int, required=True)
    parser.add_argument("--jars", required=True, help="joined by a colon")
    options = parser.parse_args()
    run = Run("flink_sql", "running_sum", "", "", "", options.interval_ms, options.folder, options.jars)
    prepare(run)
    from pyflink.common import Types, WatermarkStrategy
    from pyflink.datastream import StreamExecutionEnvironment
    from pyflink.datastream.connectors.number_seq import NumberSequenceSource
    from pyflink.table import StreamTableEnvironment

    settings = configuration(run)
    for name, value in {**_SETTINGS, "rest.port": options.port, "rest.bind-port": options.port}.items():
        settings.set_string(name, value)
    settings.set_string("state.backend.rocksdb.localdir", str(Path(options.folder, "rocksdb").resolve()))
    environment = StreamExecutionEnvironment.get_execution_environment(settings)
    tables = StreamTableEnvironment.create(environment)
    numbers = NumberSequenceSource(0, _TASKS * _EACH_TASK - 1)
    stream = environment.from_source(numbers, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())
    tables.create_temporary_view("numbers", stream)
    for statement in statements(options.keys):
        result = tables.execute_sql(statement)
    result.wait()


def statements(keys: int) -> tuple[str, ...]:
    """Return the SQL: every key once, then 1 % of them; the last statement is the job."""
    changed = keys // SHARE
    return (
        f"CREATE TEMPORARY VIEW ordered AS SELECT {_ROW} AS n FROM numbers",
        "CREATE TEMPORARY VIEW input AS SELECT"
        f" CONCAT('k', CAST(CASE WHEN n < {keys} THEN n ELSE MOD(n, {changed}) * {SHARE} END AS STRING)) AS k,"
        " MOD(n, 100) AS v, PROCTIME() AS `at` FROM ordered",
        "CREATE TABLE output (k STRING, total BIGINT, n BIGINT) WITH ('connector' = 'blackhole')",
        "INSERT INTO output SELECT k, SUM(v) OVER w, COUNT(*) OVER w FROM input"
        " WINDOW w AS (PARTITION BY k ORDER BY `at` ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)",
    )


if __name__ == "__main__":
    main()
