"""How much a Kafka source's batches take, and the same source with less."""

import pytest
from spark_ckpt_kafka import KafkaSource


def source(**options):
    return KafkaSource("broker:9092", "in", options=options)


def test_without_a_limit_a_batch_takes_all_there_is():
    assert source().rows_per_batch is None
    assert source().limited(10).rows_per_batch == 10


def test_a_larger_limit_becomes_smaller_in_another_source_only():
    own = source(maxOffsetsPerTrigger=50, includeHeaders=True)
    limited = own.limited(10)
    assert (own.rows_per_batch, limited.rows_per_batch) == (50, 10)
    assert limited.describe() == {**own.describe(), "maxOffsetsPerTrigger": "10"}


@pytest.mark.parametrize("most", [1, 10])
def test_batches_that_are_as_small_already_stay_as_they_are(most):
    assert source(maxOffsetsPerTrigger=most).limited(10) is None


def test_a_source_that_waits_for_a_least_number_of_records_keeps_its_batches():
    assert source(minOffsetsPerTrigger=5, maxOffsetsPerTrigger=50).limited(10) is None
