"""Publishes in a process of its own: `delta_child.py TABLE INCARNATION SINK FIRST LAST`, epoch n with the row n.

Its staged files are found by their names, so that a later process publishes the same epochs from the same files.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.parquet as pq
from delta_kit import context, output
from spark_ckpt_delta.publisher import DeltalakePublisher

from spark_ckpt.connector import StagedFile


def staged(path: Path) -> StagedFile:
    """Return the manifest's record of a staged file."""
    rows = pq.read_metadata(path).num_rows
    return StagedFile(path.name, path.stat().st_size, rows, 0, 0, 0, 0, {}, f'{{"numRecords": {rows}}}')


def main(table: Path, incarnation: int, sink: str, first: int, last: int) -> None:
    """Publish the epochs; prints each as it is acknowledged."""
    publisher = DeltalakePublisher(str(table), {}, context(incarnation, sink))
    for epoch in range(first, last + 1):
        files = [staged(path) for path in sorted(table.glob(f"ckpt-{sink}-i*-b{epoch}-*.parquet"))]
        publisher.publish(output(table, epoch, files, incarnation))
        print(epoch, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
