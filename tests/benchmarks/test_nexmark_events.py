"""NEXMark's events have the reference's proportions, ids and skew, are reproducible, and are late within the bound."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.nexmark.events import CLOSING, FIRST_ID, HOT, KINDS, WATERMARK_DELAY_MS, Events, events

COUNT, DISORDER_MS = 100_000, 500


@pytest.fixture(scope="module")
def made() -> Events:
    return events(COUNT, disorder_ms=DISORDER_MS)


@pytest.fixture(scope="module")
def records(made: Events) -> list[dict[str, dict[str, object]]]:
    return [json.loads(value) for value in made.values()]


def test_of_fifty_events_one_is_a_person_three_are_auctions_the_rest_bids(records) -> None:
    kinds = Counter(kind for record in records[:-CLOSING] for kind in KINDS if kind in record)
    assert kinds == {"person": COUNT // 50, "auction": COUNT * 3 // 50, "bid": COUNT * 46 // 50}
    assert all(KINDS[record["event_type"]] in record for record in records)


def test_records_equal_the_tables(made: Events, records) -> None:
    for kind in KINDS:
        table = getattr(made, kind)
        said = Counter(tuple(record[kind].values()) for record in records if kind in record)
        assert said == Counter(table.itertuples(index=False, name=None))
        assert {tuple(record[kind]) for record in records if kind in record} == {tuple(table.columns)}


def test_events_are_the_same_for_a_seed_and_differ_for_another() -> None:
    first, second, other = (list(events(2000, seed=seed).values()) for seed in (1, 1, 2))
    assert first == second
    assert first != other


def test_a_record_arrives_at_most_the_disorder_after_a_later_one(records) -> None:
    times = np.array([record[kind]["dateTime"] for record in records for kind in KINDS if kind in record])
    behind = np.maximum.accumulate(times) - times
    assert 0.8 * DISORDER_MS < behind.max() <= DISORDER_MS < WATERMARK_DELAY_MS


def test_half_of_the_bids_are_on_the_hot_auction_and_three_quarters_by_the_hot_bidder(made: Events) -> None:
    bids = made.bid[:-CLOSING]
    assert ((bids["auction"] - FIRST_ID) % HOT == 0).mean() == pytest.approx(0.5, abs=0.02)
    assert ((bids["bidder"] - FIRST_ID) % HOT == 1).mean() == pytest.approx(0.75, abs=0.02)
    assert ((made.auction["seller"] - FIRST_ID) % HOT == 0).mean() == pytest.approx(0.75, abs=0.02)


def test_bids_are_on_auctions_in_flight_or_shortly_before_they_open(made: Events) -> None:
    bids = made.bid[:-CLOSING].merge(made.auction[["id", "dateTime"]], left_on="auction", right_on="id")
    early = bids["dateTime_x"] < bids["dateTime_y"]
    assert 0 < early.mean() < 0.1
    assert len(bids) > 0.999 * (len(made.bid) - CLOSING), "all but the leads at the very end are on an auction"


def test_the_last_records_close_every_window_in_every_partition(made: Events, records) -> None:
    closing = [record["bid"] for record in records[-CLOSING:]]
    newest = max(record[kind]["dateTime"] for record in records[:-CLOSING] for kind in KINDS if kind in record)
    assert all(made.last_watermark_ms == bid["dateTime"] - WATERMARK_DELAY_MS > newest + 10_000 for bid in closing)
    assert all(one == {**other, "price": one["price"]} for one, other in pairwise(closing))
