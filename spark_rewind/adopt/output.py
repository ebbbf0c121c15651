"""Lookup of a batch in a query's output: Delta's log and the file sink's log name their batches."""

from __future__ import annotations

from pathlib import Path

from spark_ckpt.delta_files import LOG
from spark_ckpt.errors import CheckpointForeign
from spark_ckpt.spark_internals.query_logs import SINK_LOG
from spark_rewind.sink_logs import read_sink_log
from spark_rewind.tables import read_table


def shown(folder: Path, query: str, batch: int) -> bool:
    """Return true if the output in `folder` has the batch of the query.

    Raises `CheckpointForeign` for a folder that is no such output, or of another query; `LogDamaged`,
    `CheckpointDamaged`, `CheckpointUnreadable`, `FormatUnknown`.
    """
    if (folder / LOG).is_dir():
        # batch numbers of a query only grow: a newer one implies this one
        return _newest_in_table(folder, query, batch) >= batch
    if (folder / SINK_LOG).is_dir():
        return read_sink_log(folder / SINK_LOG).newest >= batch
    raise CheckpointForeign(
        f"{folder} is neither a Delta table nor the folder of a file sink",
        hint="name what the query writes with --output, or leave it out and say --unfinished done or again",
    )


def _newest_in_table(folder: Path, query: str, batch: int) -> int:
    table = read_table(folder)
    found = [number for each in table.versions for app, number in each.transactions if app == query]
    newest = max([*found, table.before.get(query, -1)])
    if newest < 0 and batch > 0:
        raise CheckpointForeign(
            f"{folder} has no transaction of the query {query}: it is not what its Delta sink writes",
            hint="name the query's own table with --output; a query that writes with foreachBatch names its batches otherwise: "
            "look at the table, and say --unfinished done or again",
        )
    return newest
