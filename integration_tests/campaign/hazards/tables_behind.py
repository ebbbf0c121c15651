"""A sink has fewer epochs than the store: its table is an older copy or lacks commits, or its topic has lost the marker."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pyspark.sql import functions as F
from spark_ckpt_delta import DeltaSink
from spark_ckpt_kafka import KafkaSink

import spark_ckpt as ckpt
from integration_tests.campaign.hazards import ways
from integration_tests.campaign.hazards.site import (
    FileJob,
    Site,
    asked,
    delete_topic,
    forget_groups,
    make_topic,
    records,
    table_rows,
)
from integration_tests.campaign.hazards.trials import Drawn
from integration_tests.campaign.hazards.verdicts import Rows, Scene, Unnoticed, Way
from spark_ckpt.errors import CkptError

KEYS = 6
APPEND, MERGE, TOPIC = "append", "merge", "topic"
NEWEST, OLDER, EMPTY, DELETED = "newest commit removed", "older copy", "all commits removed", "folder deleted"
FORGOTTEN, RECREATED = "marker group deleted", "topic deleted and re-created"
DAMAGES = {
    APPEND: (NEWEST, OLDER, EMPTY, DELETED),
    MERGE: (NEWEST, OLDER, EMPTY, DELETED),
    TOPIC: (FORGOTTEN, RECREATED),
}
COMMANDS = ("verify", "doctor", "restore")


class Behind(Scene):
    """Some epochs are published to one to three sinks; then one sink loses epochs; then the job is started again."""

    def __init__(self, site: Site, folder: Path, draw: random.Random, sink: str, damage: str) -> None:
        self.kind = f"{sink}, {damage}"
        self._site, self._draw, self._damage = site, draw, damage
        others = [other for other in DAMAGES if other != sink]
        self._sinks = {site.name(each): each for each in (sink, *draw.sample(others, draw.choice((0, 0, 1, 2))))}
        self._target = site.name(sink)
        self._files = draw.choice((1, 1, 2, 3, 4))
        self._drains = draw.choice((1, 1, 2))
        self._more = draw.random() < 0.7
        self._asked = draw.choice(("", *COMMANDS)) if sink != TOPIC else ""
        self._written: list[list[tuple[str, int]]] = []
        self._lost_for_good: int | None = None
        self._twice = False
        self._job = FileJob(site, folder, "k string, n long", self._describe)
        self._whole = folder / "whole"

    def act(self) -> None:
        for name in self._sinks:
            if self._sinks[name] == TOPIC:
                make_topic(self._site.servers, name)
        for _ in range(self._drains):
            for _ in range(self._files):
                self._write()
            self._job.drain()
        for name, sink in self._sinks.items():
            if sink != TOPIC:
                shutil.copytree(self._table(name), self._whole / name)
        self._do_damage()
        self._ask()
        if self._more:
            self._write()
        self._job.drain()

    def wanted(self) -> Rows:
        every = sum((self._rows_of(name, 0) for name in self._sinks), Counter())
        if self._twice:
            every += sum((self._rows_of(name, 0) for name, sink in self._sinks.items() if sink != MERGE), Counter())
        return every

    def required(self) -> Rows:
        first = self._lost_for_good
        return sum(
            (self._rows_of(name, first if name == self._target and first is not None else 0) for name in self._sinks),
            Counter(),
        )

    def tolerated(self) -> Rows:
        """A merged table may show any earlier value of a key."""
        found: Rows = Counter()
        for name in self._sinks:
            found |= Counter({(name, k, n): 1 for rows in self._written for k, n in rows})
        return found

    def visible(self) -> Rows:
        found: Rows = Counter()
        for name, sink in self._sinks.items():
            if sink == TOPIC:
                read = [(each.key().decode(), int(each.value())) for each in records(self._site.servers, name)]
            else:
                read = [(k, n) for k, n in table_rows(self._table(name), ("k", "n"))]  # type: ignore[misc]
            found.update((name, k, n) for k, n in read)
        return found

    def ways(self) -> Sequence[Way]:
        """Actions that fit the damage: advice says `if the rows are there` and `if the rows are gone`."""
        back = r"backup|bring .{0,60}back|restore the table|put .{0,40}back|created anew: restore it"
        accept = ways.accept(self._job, "accept_new_sink", self._begin_new)
        again = ways.restore(self._job, self._published_twice)
        starts = [ways.next_start(self._job.drain), accept]
        if self._damage == FORGOTTEN:
            return [*starts, ways.repair(self._job, self._site.servers, self._target)]
        if self._damage == RECREATED:
            return [*starts, again]
        return [*starts, again, ways.start_again(self._job.drain, back, "backup", self._put_back)]

    def _published_twice(self, error: CkptError) -> None:
        """Check that the advice warns: the other sinks get rows of those epochs twice."""
        self._twice = "twice" in str(error)

    # -- the job ----------------------------------------------------------------------------------------------------------

    def _describe(self, rows: ckpt.Stream) -> None:
        for name, sink in self._sinks.items():
            if sink == APPEND:
                rows.to(DeltaSink(str(self._table(name))), name=name, publish_every="0 seconds")
            elif sink == MERGE:
                table = DeltaSink(str(self._table(name)), engine="spark", keys=["k"])
                rows.to(table, name=name, publish_every="0 seconds")
            else:
                columns = (F.col("k").alias("key"), F.col("n").cast("string").alias("value"))
                rows.select(*columns).to(KafkaSink(self._site.servers, name), name=name)

    def _write(self) -> None:
        first = sum(map(len, self._written))
        keys = self._draw.sample(range(KEYS), self._draw.randint(1, KEYS))
        self._written.append([(f"k{key}", first + n) for n, key in enumerate(keys)])
        self._job.write([{"k": k, "n": n} for k, n in self._written[-1]])

    def _table(self, name: str) -> Path:
        return self._job.folder / f"table-{name}"

    def _rows_of(self, name: str, first_file: int) -> Rows:
        rows = [row for file in self._written[first_file:] for row in file]
        rows = list(dict(rows).items()) if self._sinks[name] == MERGE else rows
        return Counter((name, k, n) for k, n in rows)

    # -- the damage -------------------------------------------------------------------------------------------------------

    def _do_damage(self) -> None:
        if self._damage == FORGOTTEN:
            assert forget_groups(self._site.servers, self._target), "there is no marker to delete"
        elif self._damage == RECREATED:
            delete_topic(self._site.servers, self._target)
            make_topic(self._site.servers, self._target)
        else:
            cut(self._table(self._target), self._damage, self._draw)
            self._site.forget_tables()

    def _put_back(self) -> None:
        shutil.rmtree(self._table(self._target), ignore_errors=True)
        shutil.copytree(self._whole / self._target, self._table(self._target))
        self._site.forget_tables()

    def _begin_new(self) -> None:
        """The sink starts with the next epoch: rows of earlier epochs are no longer promised."""
        self._lost_for_good = self._drains * self._files

    def _ask(self) -> None:
        """An operator's command on the store must not answer `whole`."""
        if not self._asked:
            return
        words = {
            "verify": ["verify", self._job.store, "--deep"],
            "doctor": ["doctor", "--store", self._job.store],
            "restore": ["restore", self._job.store, "latest", "--dry-run"],
        }[self._asked]
        code, text = asked(words)
        if code == 0 and self._target not in text:
            raise Unnoticed(f"{' '.join(words[:1])}: ends with 0 and does not name the sink: {text[-800:]}")


def cut(table: Path, damage: str, draw: random.Random) -> None:
    """Remove the newest commits of a table's log. An older copy lacks their data files, too."""
    log = table / "_delta_log"
    newest = max(int(path.stem) for path in log.glob("*.json") if path.stem.isdigit())
    keep = {NEWEST: newest - 1, OLDER: draw.randint(0, newest - 1) if newest else -1, EMPTY: 0}.get(damage, -1)
    if keep < 0 or (damage == EMPTY and newest == 0):
        shutil.rmtree(table)
        return
    for path in log.iterdir():
        number = path.name.split(".")[0]
        if number.isdigit() and int(number) > keep:
            path.unlink()
    (log / "_last_checkpoint").unlink(missing_ok=True)
    if damage != NEWEST:
        kept = set(_data_files(log))
        for path in table.rglob("*.parquet"):
            if "_delta_log" not in path.parts and path.name not in kept:
                path.unlink()


def _data_files(log: Path) -> Sequence[str]:
    lines = [line for path in sorted(log.glob("*.json")) for line in path.read_text().splitlines()]
    return [Path(action["add"]["path"]).name for action in map(json.loads, lines) if "add" in action]


def _drawn(sink: str, damage: str) -> Drawn:
    return partial(_behind, sink=sink, damage=damage)


def _behind(site: Site, folder: Path, draw: random.Random, sink: str, damage: str) -> Scene:
    return Behind(site, folder, draw, sink, damage)


SCENES: Sequence[Callable[[Site, Path, random.Random], Scene]] = [
    _drawn(sink, damage) for sink, damages in DAMAGES.items() for damage in damages
]
