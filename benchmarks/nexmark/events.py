"""The auction house's events, computed: the proportions, ids, prices and skew of NEXMark's reference generator.

Of fifty consecutive events the first is a person, the next three are auctions, the rest bids. A record is JSON: `event_type`, and
one object named after the event's kind; times are milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

FIRST_EVENT_MS = 1_700_000_000_000
KINDS = ("person", "auction", "bid")
PERSONS, AUCTIONS, BIDS = 1, 3, 46
EPOCH = PERSONS + AUCTIONS + BIDS
FIRST_ID, FIRST_CATEGORY, CATEGORIES = 1000, 10, 5
IN_FLIGHT, ACTIVE, LEAD = 100, 1000, 10
"""Auctions that may get bids, people who may bid and sell, and how far ahead of the newest of them an id may be."""
HOT = 100
"""Every hundredth auction and person is hot while it is among the last hundred: half of the bids, three quarters of the bidders and
of the sellers."""
CLOSING, CLOSING_AFTER_MS = 4, 60_000
"""The last records of a topic are bids a minute later, one in each partition, so that the watermark passes every window."""
WATERMARK_DELAY_MS = 4000
"""Delay of the watermark in queries with event time."""

STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = (
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
)
FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_CHANNELS, _TEXTS, _CHUNK = 10_000, 4096, 100_000


@dataclass(frozen=True, eq=False)
class Events:
    """A table per kind, rows in order of their number, columns in the order of the record. `order`: event numbers in order of
    arrival; numbers count persons first, then auctions, then bids.
    """

    person: pd.DataFrame
    auction: pd.DataFrame
    bid: pd.DataFrame
    order: np.ndarray

    def __len__(self) -> int:
        return len(self.order)

    @cached_property
    def last_watermark_ms(self) -> int:
        """Final watermark, with the queries' delay."""
        return int(self.bid["dateTime"].max()) - WATERMARK_DELAY_MS

    def values(self) -> Iterator[str]:
        """Records in order of arrival; the n-th goes to partition n modulo the number of partitions."""
        tables = (self.person, self.auction, self.bid)
        starts = np.cumsum([0, *map(len, tables)])
        for start in range(0, len(self), _CHUNK):
            chosen = self.order[start : start + _CHUNK]
            texts = np.empty(len(chosen), object)
            for number, (kind, table) in enumerate(zip(KINDS, tables, strict=True)):
                at = np.flatnonzero((chosen >= starts[number]) & (chosen < starts[number + 1]))
                texts[at] = _json(number, kind, table.iloc[chosen[at] - starts[number]]).to_pylist()
            yield from texts


def events(count: int, *, per_second: int = 10_000, disorder_ms: int = 1000, seed: int = 1) -> Events:
    """Make `count` events, then the closing ones. `per_second` of event time. A record arrives after records that are younger by at
    most `disorder_ms` of event time.
    """
    random = np.random.default_rng(seed)
    number = np.arange(count)
    at_ms = FIRST_EVENT_MS + number * 1000 // per_second
    offset = number % EPOCH
    parts = [
        number[part]
        for part in (offset < PERSONS, (offset >= PERSONS) & (offset < EPOCH - BIDS), offset >= EPOCH - BIDS)
    ]
    person, auction, bid = parts
    horizon_ms = 1000 * IN_FLIGHT * EPOCH // AUCTIONS // per_second
    tables = (
        _persons(person, at_ms[person], random),
        _auctions(auction, at_ms[auction], horizon_ms, random),
        _closed(_bids(bid, at_ms[bid], random)),
    )
    arrival = number + random.random(count) * (disorder_ms * per_second / 1000)
    order = np.argsort(np.concatenate([arrival[part] for part in parts]), kind="stable")
    return Events(*tables, np.concatenate([order, np.arange(count, count + CLOSING)]))


def _persons(number: np.ndarray, at_ms: np.ndarray, random: np.random.Generator) -> pd.DataFrame:
    cards = ["{:04d} {:04d} {:04d} {:04d}".format(*digits) for digits in random.integers(0, 10_000, (_TEXTS, 4))]
    names = [f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES]
    mails = [f"{first}@{last}.com" for first, last in zip(_words(random, 7), _words(random, 5), strict=True)]
    return pd.DataFrame(
        {
            "id": _last_person(number) + FIRST_ID,
            "name": _any_of(names, len(number), random),
            "emailAddress": _any_of(mails, len(number), random),
            "creditCard": _any_of(cards, len(number), random),
            "city": _any_of(CITIES, len(number), random),
            "state": _any_of(STATES, len(number), random),
            "dateTime": at_ms,
            "extra": _any_of(_words(random, 130), len(number), random),
        }
    )


def _auctions(number: np.ndarray, at_ms: np.ndarray, horizon_ms: int, random: np.random.Generator) -> pd.DataFrame:
    count = len(number)
    first = _prices(count, random)
    hot = random.integers(0, 4, count) > 0
    return pd.DataFrame(
        {
            "id": _last_auction(number) + FIRST_ID,
            "itemName": _any_of(_words(random, 12), count, random),
            "description": _any_of(_words(random, 50), count, random),
            "initialBid": first,
            "reserve": first + _prices(count, random),
            "dateTime": at_ms,
            "expires": at_ms + 1 + random.integers(0, max(2 * horizon_ms, 1), count),
            "seller": FIRST_ID + np.where(hot, _last_person(number) // HOT * HOT, _some_person(number, random)),
            "category": FIRST_CATEGORY + random.integers(0, CATEGORIES, count),
            "extra": _any_of(_words(random, 390), count, random),
        }
    )


def _bids(number: np.ndarray, at_ms: np.ndarray, random: np.random.Generator) -> pd.DataFrame:
    last = _last_auction(number)
    hot_auction, hot_bidder = random.integers(0, 2, len(number)) > 0, random.integers(0, 4, len(number)) > 0
    lowest = np.maximum(last - IN_FLIGHT, 0)
    some_auction = random.integers(lowest, last + 1 + LEAD)
    auction = np.where(hot_auction, last // HOT * HOT, some_auction)
    bidder = np.where(hot_bidder, _last_person(number) // HOT * HOT + 1, _some_person(number, random))
    return _bid_table(auction + FIRST_ID, bidder + FIRST_ID, at_ms, random)


def _bid_table(auction: np.ndarray, bidder: np.ndarray, at_ms: np.ndarray, random: np.random.Generator) -> pd.DataFrame:
    count = len(auction)
    others = [f"channel-{n}" for n in range(_CHANNELS)]
    chosen = np.where(
        random.integers(0, 2, count) > 0, random.integers(0, 4, count), random.integers(4, _CHANNELS, count)
    )
    path = zip(*(_words(random, 5) for _ in range(3)), strict=True)
    urls = [f"https://www.nexmark.com/{'/'.join(words)}/item.htm?query=1" for words in path]
    return pd.DataFrame(
        {
            "auction": auction,
            "bidder": bidder,
            "price": _prices(count, random),
            "channel": pd.Categorical.from_codes(chosen, [*HOT_CHANNELS, *others[len(HOT_CHANNELS) :]]),
            "url": _any_of(urls, count, random),
            "dateTime": at_ms,
            "extra": _any_of(_words(random, 40), count, random),
        }
    )


def _closed(bids: pd.DataFrame) -> pd.DataFrame:
    """Append the closing bids, of no bidder and no auction."""
    nobody = np.zeros(CLOSING, np.int64)
    last_ms = int(bids["dateTime"].max()) + CLOSING_AFTER_MS
    closing = _bid_table(nobody, nobody, np.full(CLOSING, last_ms), np.random.default_rng(0))
    for name in ("channel", "url", "extra"):
        closing[name] = pd.Categorical.from_codes(nobody, bids[name].cat.categories)
    return pd.concat([bids, closing], ignore_index=True)


def _last_person(number: np.ndarray) -> np.ndarray:
    """The newest person when an event happens, from 0."""
    return number // EPOCH


def _last_auction(number: np.ndarray) -> np.ndarray:
    """The newest auction, from 0."""
    return number // EPOCH * AUCTIONS + np.minimum(number % EPOCH - PERSONS, AUCTIONS - 1)


def _some_person(number: np.ndarray, random: np.random.Generator) -> np.ndarray:
    people = _last_person(number) + 1
    active = np.minimum(people, ACTIVE)
    return people - active + random.integers(0, active + LEAD)


def _prices(count: int, random: np.random.Generator) -> np.ndarray:
    """Prices from 100 to a hundred million, evenly by magnitude."""
    return np.round(10.0 ** (random.random(count) * 6.0) * 100.0).astype(np.int64)


def _words(random: np.random.Generator, length: int) -> list[str]:
    """Different words of `length` letters, plus or minus a fifth."""
    letters = random.integers(97, 123, (_TEXTS, length + length // 5 + 1), np.uint8)
    lengths = random.integers(length - length // 5, length + length // 5 + 1, _TEXTS)
    found = [row[:size].tobytes().decode() for row, size in zip(letters, lengths, strict=True)]
    return [f"{word}{number:03x}"[-size:] for number, (word, size) in enumerate(zip(found, lengths, strict=True))]


def _any_of(texts: list[str] | tuple[str, ...], count: int, random: np.random.Generator) -> pd.Categorical:
    return pd.Categorical.from_codes(random.integers(0, len(texts), count), texts)


def _json(number: int, kind: str, table: pd.DataFrame) -> pa.Array:
    fields = [part for name in table.columns for part in _field(name, table[name])]
    opening = f'{{"event_type":{number},"{kind}":{{'
    return pc.binary_join_element_wise(pa.scalar(opening), *_without_first_comma(fields), pa.scalar("}}"), "")


def _field(name: str, column: pd.Series) -> tuple[pa.Scalar, pa.Array, pa.Scalar]:
    quote = '"' if isinstance(column.dtype, pd.CategoricalDtype) else ""
    texts = pa.array(column).cast(pa.string())
    return pa.scalar(f',"{name}":{quote}'), texts, pa.scalar(quote)


def _without_first_comma(parts: list[pa.Scalar | pa.Array]) -> list[pa.Scalar | pa.Array]:
    return [pa.scalar(parts[0].as_py()[1:]), *parts[1:]]
