"""Rows that a topic rejects, always or by its settings: each record arrives unchanged, or a typed error has recovery advice."""

from __future__ import annotations

import base64
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F
from spark_ckpt_kafka import KafkaSink

import spark_ckpt as ckpt
from integration_tests.campaign.hazards import ways
from integration_tests.campaign.hazards.site import FileJob, Site, make_topic, records
from integration_tests.campaign.hazards.trials import Drawn
from integration_tests.campaign.hazards.verdicts import Rows, Scene, Way

HEADERS = "array<struct<key:string,value:string>>"
SCHEMA = f"bad boolean, key string, value string, timestamp timestamp, partition int, headers {HEADERS}"


@dataclass(frozen=True)
class Poison:
    """Fields of the odd row, and the topic's settings. `legal`: Kafka accepts it, so the job must write it or refuse it."""

    name: str
    row: Mapping[str, Any]
    topic: Mapping[str, str] = field(default_factory=dict)
    columns: Sequence[str] = ("key", "value")


def _at(when: str) -> dict[str, Any]:
    return {"timestamp": when}


TIMED = ("key", "value", "timestamp")
HEADED = ("key", "value", "headers")
DAY = {"message.timestamp.before.max.ms": "86400000"}
POISONS = [
    Poison("no key, compacted topic", {"key": None}, {"cleanup.policy": "compact"}),
    Poison("time of tomorrow", _at("tomorrow"), {"message.timestamp.after.max.ms": "3600000"}, TIMED),
    Poison("time of last year, topic takes a day", _at("2025-01-01T00:00:00Z"), DAY, TIMED),
    Poison("value over the topic's limit", {"value": "random 20000"}, {"max.message.bytes": "10000"}),
    Poison("key over the topic's limit", {"key": "random 20000"}, {"max.message.bytes": "10000"}),
    Poison("partition out of range", {"partition": 7}, {}, ("key", "value", "partition")),
    Poison("partition -1", {"partition": -1}, {}, ("key", "value", "partition")),
    Poison("partition 0", {"partition": 0}, {}, ("key", "value", "partition")),
    Poison("null inside headers", {"headers": [None]}, {}, HEADED),
    Poison("header without a key", {"headers": [{"key": None, "value": "x"}]}, {}, HEADED),
    Poison("header without a value", {"headers": [{"key": "h", "value": None}]}, {}, HEADED),
    Poison("header with an empty key", {"headers": [{"key": "", "value": ""}]}, {}, HEADED),
    Poison("time 0", _at("1970-01-01T00:00:00Z"), {}, TIMED),
    Poison("time 0.9 ms", _at("1970-01-01T00:00:00.000900Z"), {}, TIMED),
    Poison("time before 1970", _at("1969-12-31T23:59:59Z"), {}, TIMED),
    Poison("time of the year 9999", _at("9999-12-31T00:00:00Z"), {}, TIMED),
    Poison("null value", {"value": None}),
    Poison("empty key and value", {"key": "", "value": ""}),
]  # fmt: skip


class Poisoned(Scene):
    """Plain rows in several files, one odd row among them."""

    def __init__(self, site: Site, folder: Path, draw: random.Random, poison: Poison) -> None:
        self.kind = poison.name
        self._site, self._poison = site, poison
        self._topic = site.name("poison")
        self._filters = False
        files, odd = draw.randint(1, 3), draw.randint(0, 8)
        rows = [self._plain(n) for n in range(9)]
        rows[odd] |= {"bad": True, **self._odd(draw)}
        self._files = [rows[n::files] for n in range(files)]
        self._job = FileJob(site, folder, SCHEMA, self._describe)

    def _plain(self, number: int) -> dict[str, Any]:
        row: dict[str, Any] = {"bad": False, "key": f"k{number}", "value": f"v{number}"}
        more = {"timestamp": None, "partition": 0, "headers": None}
        return row | {name: more[name] for name in self._poison.columns if name in more}

    def _odd(self, draw: random.Random) -> dict[str, Any]:
        from datetime import UTC, datetime, timedelta

        row = dict(self._poison.row)
        for name, value in row.items():
            if isinstance(value, str) and value.startswith("random "):
                row[name] = base64.b64encode(draw.randbytes(int(value.split()[1]))).decode()
        if row.get("timestamp") == "tomorrow":
            row["timestamp"] = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        return row

    def _describe(self, rows: ckpt.Stream) -> None:
        if self._filters:
            rows = rows.filter("NOT bad")
        columns = [F.col(name) for name in self._poison.columns]
        if "headers" in self._poison.columns:
            columns[-1] = F.expr(
                "transform(headers, h -> if(h IS NULL, NULL, named_struct('key', h.key, 'value', cast(h.value AS binary))))"
            ).alias("headers")
        rows.select(*columns).to(KafkaSink(self._site.servers, self._topic), name="out")

    def act(self) -> None:
        make_topic(self._site.servers, self._topic, 1, self._poison.topic)
        for rows in self._files:
            self._job.write(rows)
        self._job.drain()

    def wanted(self) -> Rows:
        every = [row for rows in self._files for row in rows]
        return Counter(self._shown(row) for row in every if not (self._filters and row["bad"]))

    def _shown(self, row: Mapping[str, Any]) -> tuple[object, ...]:
        headers = row.get("headers")
        shown = json.dumps([(h and h["key"], h and h["value"]) for h in headers] if headers else None)
        return (row["key"], row["value"], _ms(row.get("timestamp")) if row["bad"] else None, shown)

    def visible(self) -> Rows:
        found: Rows = Counter()
        odd = next(row for rows in self._files for row in rows if row["bad"])
        for each in records(self._site.servers, self._topic):
            key, value = (None if part is None else part.decode() for part in (each.key(), each.value()))
            timed = (key, value) == (odd["key"], odd["value"]) and odd.get("timestamp") is not None
            headers = [(name, None if part is None else part.decode()) for name, part in each.headers() or ()]
            found[(key, value, each.timestamp()[1] if timed else None, json.dumps(headers or None))] += 1
        return found

    def ways(self) -> Sequence[Way]:
        filtered = ways.filtered(self._job, self._filter)
        return [*filtered, ways.next_start(self._job.drain)]

    def _filter(self) -> None:
        self._filters = True


class SmallRecords(Scene):
    """One epoch has far more small records than the topic accepts in one batch."""

    def __init__(self, site: Site, folder: Path, draw: random.Random) -> None:
        self.kind = "small records, together over the topic's limit"
        self._site, self._topic = site, site.name("small")
        self._limit = draw.choice((20_000, 100_000))
        size = draw.choice((300, 700))
        self._rows = [
            (f"k{n}", base64.b64encode(draw.randbytes(size)).decode()) for n in range(5 * self._limit // size)
        ]
        self._job = FileJob(site, folder, "key string, value string", self._describe)

    def _describe(self, rows: ckpt.Stream) -> None:
        rows.to(KafkaSink(self._site.servers, self._topic), name="out")

    def act(self) -> None:
        make_topic(self._site.servers, self._topic, 1, {"max.message.bytes": str(self._limit)})
        self._job.write([{"key": key, "value": value} for key, value in self._rows])
        self._job.drain()

    def wanted(self) -> Rows:
        return Counter(self._rows)

    def visible(self) -> Rows:
        return Counter(
            (each.key().decode(), each.value().decode()) for each in records(self._site.servers, self._topic)
        )

    def ways(self) -> Sequence[Way]:
        return [ways.next_start(self._job.drain)]


def _ms(when: str | None) -> int | None:
    from datetime import UTC, datetime

    if when is None:
        return None
    moment = datetime.fromisoformat(when.replace("Z", "+00:00"))
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def _poisoned(site: Site, folder: Path, draw: random.Random, poison: Poison) -> Scene:
    return Poisoned(site, folder, draw, poison)


SCENES: Sequence[Drawn] = [*(partial(_poisoned, poison=poison) for poison in POISONS), SmallRecords]
