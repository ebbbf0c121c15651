"""Ids of state files (checkpoint format 2) stay in memory only as long as a capture may need them."""

from __future__ import annotations

import json
import uuid
import zipfile
from pathlib import Path

import pytest

from spark_ckpt.driver.query.spark_state import CheckpointState
from spark_ckpt.errors import SparkStateUncaptured
from spark_ckpt.spark_internals.settings import CHECKPOINT_FORMAT, PARTITIONS, PROVIDER
from spark_ckpt.store.location import Location
from spark_ckpt.store.spark_state import SparkStates

OPERATOR = {"operatorInfo": {"operatorId": 0, "operatorName": "dedupe"}, "stateStoreInfo": [{"numPartitions": 1}]}
ROCKSDB = "RocksDBStateStoreProvider"
EVERY = 10
"""Batches from one snapshot to the next."""


class Query:
    """A query's checkpoint with one operator of one partition, as Spark writes it batch by batch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkpoint"
        self.put("state/0/_metadata/metadata", f"v1\n{json.dumps(OPERATOR)}")
        settings = {PROVIDER: ROCKSDB, CHECKPOINT_FORMAT: "2"}
        self.states = SparkStates(Location(str(folder / "store")))
        self.state = CheckpointState(self.states, self.folder, 1, None, 0, settings)

    def put(self, path: str, text: str) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def run_batch(self, batch: int) -> list[str]:
        """Run and capture a batch; return the places of its state's files. A late attempt writes a file, too."""
        name, conf = f"{batch + 1}_{uuid.uuid4()}", {PARTITIONS: "1", PROVIDER: ROCKSDB}
        self.put(
            f"offsets/{batch}", f"v1\n{json.dumps({'batchTimestampMs': 1, 'batchWatermarkMs': 0, 'conf': conf})}\n"
        )
        self.put(f"state/0/0/{name}.changelog", name)
        self.put(f"state/0/0/{batch + 1}_{uuid.uuid4()}.changelog", "of a late attempt")
        if batch % EVERY == 0:
            with zipfile.ZipFile(self.folder / f"state/0/0/{name}.zip", "w") as archive:
                archive.writestr("metadata", 'v1\n{"sstFiles": [], "logFiles": []}')
        ids = {"nextBatchWatermarkMs": 0, "stateUniqueIds": {"0": [[name.partition("_")[2]]]}}
        self.put(f"commits/{batch}", f"v2\n{json.dumps(ids)}")
        record = self.state.after(batch, 1000, lambda: False)
        return [file.place for file in self.states.index(record).files if file.place.startswith("0/0/")]


def test_ids_in_memory_reach_back_to_the_snapshot_only(tmp_path: Path) -> None:
    query = Query(tmp_path)
    for batch in range(4 * EVERY):
        places = query.run_batch(batch)
        since = batch // EVERY * EVERY + 1
        assert query.state.versions_with_ids == set(range(since, batch + 2))
        assert len(places) == batch + 2 - since + 1, "a snapshot and the changes since, of one attempt each"


def test_a_commit_that_spark_deletes_during_the_capture_raises_state_not_captured(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.run_batch(0)
    (tmp_path / "checkpoint/commits/1").symlink_to("deleted")  # listed, and gone when it is read
    with pytest.raises(SparkStateUncaptured, match="commits/1 is gone"):
        query.run_batch(2)
