"""What an incarnation's query copies from its session."""

from __future__ import annotations

import pytest

from spark_ckpt.runtime.stage_query import query_settings

FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


@pytest.mark.parametrize("uri", ["/data/orders/runs/3", "file:///data/orders/runs/3"])
def test_a_local_checkpoint_is_written_without_a_process_per_file_operation(uri: str) -> None:
    assert query_settings(uri, 2)[FILE_MANAGER].endswith(".FileSystemBasedCheckpointFileManager")


@pytest.mark.parametrize("uri", ["s3a://bucket/orders/runs/3", "hdfs://name/orders/runs/3"])
def test_elsewhere_spark_chooses_how_checkpoint_files_are_written(uri: str) -> None:
    assert FILE_MANAGER not in query_settings(uri, 2)


def test_the_number_of_partitions_is_the_incarnations() -> None:
    assert query_settings("/data", 7)["spark.sql.shuffle.partitions"] == "7"
