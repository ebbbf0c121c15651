"""The limit of a Kafka source's batches, and copies of the source with a smaller one."""

import pytest
from spark_ckpt_kafka import KafkaSource


def source(**options):
    return KafkaSource("broker:9092", "in", options=options)


def test_without_a_limit_a_batch_takes_all_records():
    assert source().rows_per_batch is None
    assert source().limited(10).rows_per_batch == 10


def test_a_smaller_limit_applies_to_a_copy_of_the_source_only():
    own = source(maxOffsetsPerTrigger=50, includeHeaders=True)
    limited = own.limited(10)
    assert (own.rows_per_batch, limited.rows_per_batch) == (50, 10)
    assert limited.describe() == {**own.describe(), "maxOffsetsPerTrigger": "10"}


@pytest.mark.parametrize("most", [1, 10])
def test_batches_that_are_as_small_already_stay_as_they_are(most):
    assert source(maxOffsetsPerTrigger=most).limited(10) is None


def test_a_source_with_a_minimum_number_of_records_keeps_its_batches():
    assert source(minOffsetsPerTrigger=5, maxOffsetsPerTrigger=50).limited(10) is None
