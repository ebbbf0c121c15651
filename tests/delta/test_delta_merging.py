"""A merge's condition reads only the needed part of the table; Delta's conflicts differ from other failures."""

from __future__ import annotations

import re

import pytest
from spark_ckpt_delta.merging import MergePatience, condition, conflict


def test_rows_are_matched_by_key_also_where_keys_are_null() -> None:
    assert condition(["a", "b`c"], {}, {}) == "target.`a` <=> staged.`a` AND target.`b``c` <=> staged.`b``c`"


def test_partitions_among_the_keys_are_named_with_their_types() -> None:
    found = condition(["day", "id"], {"day": ["2024-01-01", None]}, {"day": "date"})
    day = b"2024-01-01".hex()
    assert found.startswith(f"(target.`day` IN (CAST(CAST(X'{day}' AS STRING) AS date)) OR target.`day` IS NULL) AND ")


def test_a_partition_of_nulls_only_is_named() -> None:
    assert condition(["p"], {"p": [None]}, {"p": "int"}).startswith("(target.`p` IS NULL) AND ")


@pytest.mark.parametrize("value", ["') OR true --\\", "back\\slash", 'say "x"', "ü"])
def test_a_partition_value_stays_a_value_for_every_quoting_of_the_session(value: str) -> None:
    found = condition(["p"], {"p": [value]}, {"p": "string"})
    assert [bytes.fromhex(text).decode() for text in re.findall("X'([0-9a-f]*)'", found)] == [value]
    assert value not in found


def test_a_partition_by_time_is_named_by_its_instant_and_not_by_local_time() -> None:
    micros = b"1730615400000000".hex()
    found = condition(["at"], {"at": ["1730615400000000"]}, {"at": "timestamp"})
    assert f"timestamp_micros(CAST(CAST(X'{micros}' AS STRING) AS BIGINT))" in found


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("[DELTA_CONCURRENT_APPEND.WITHOUT_HINT] files were added", "DELTA_CONCURRENT_APPEND"),
        ("io.delta.exceptions.ConcurrentDeleteReadException: x", "ConcurrentDeleteReadException"),
        ("[DELTA_METADATA_CHANGED] the metadata", "DELTA_METADATA_CHANGED"),
        ("CHECK constraint positive (total > 0) violated", ""),
    ],
)
def test_a_conflict_with_another_writer_differs_from_a_failure(text: str, name: str) -> None:
    assert conflict(RuntimeError(text)) == name


def test_pauses_grow_and_are_bounded() -> None:
    paused: list[float] = []
    patience = MergePatience(first_pause_s=1.0, longest_pause_s=4.0, sleep=paused.append)
    for failures in range(1, 6):
        patience.pause(failures)
    assert all(bound / 2 <= pause <= bound * 1.5 for bound, pause in zip([1, 2, 4, 4, 4], paused, strict=True))
