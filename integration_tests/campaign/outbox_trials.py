"""A plain query with an outbox: frozen drivers that wake up, checkpoints that are changed by hand, and Spark Connect."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from integration_tests.broker import Broker
from integration_tests.campaign.outbox_kills import FILES, compared, die
from integration_tests.campaign.trial import Results
from integration_tests.outbox.outbox_deaths import IN_CHILDREN, POINTS, live, records, start
from integration_tests.outbox.outbox_query import Place, Row, expected, write_files
from integration_tests.survival.ledger import create_topic
from integration_tests.survival.process import processes, wait_until
from spark_ckpt.store.store import Store

_ENDED_S, _TRIALS_A_QUERY = 600.0, 5
_CONDITION = re.compile(r"\[(CKPT_[A-Z_]+)\]")
_LEFT = re.compile(r"abandoned: batch \d+ \(epoch (\d+)\), (\d+) rows")
_RESTORE = re.compile(r"restore=(\d+)")


@dataclass
class _Query:
    """One query with its sinks, and the number of its input files."""

    broker: Broker
    place: Place
    topic: str
    draw: random.Random
    files: int = 0

    def arguments(self, *more: str) -> tuple[str, ...]:
        return ("--servers", self.broker.servers, "--topic", self.topic, *more)

    def feed(self, files: int = FILES) -> None:
        write_files(self.place.inbox, range(self.files, self.files + files))
        self.files += files

    def run(self, *more: str, points: str = "") -> tuple[int, list[str], str]:
        """Run the program to its end. Return its exit code, the conditions of its errors, and its output."""
        log = self.place.folder / "driver.log"
        before = log.stat().st_size if log.exists() else 0
        code = live(self.place, points, *self.arguments(*more), timeout_s=_ENDED_S)
        said = log.read_bytes()[before:].decode(errors="replace")
        return code, list(dict.fromkeys(_CONDITION.findall(said))), said

    def found(self) -> tuple[Counter[Row], Counter[Row]]:
        return self.place.rows("gold"), records(self.broker.servers, self.topic)

    def wrong(self, again: int = 0) -> str:
        """Return the difference between the sinks and the input; together the sinks have `again` repeated rows."""
        wanted, more = expected(range(self.files)), 0
        for sink, found in zip(("Delta", "Kafka"), self.found(), strict=True):
            lost, extra = wanted - found, found - wanted
            if lost or any(row not in wanted for row in extra):
                return f"{sink} lacks {lost}, has {extra}"[:500]
            more += extra.total()
        return f"{more} rows are there again, {again} were reported" if more != again else ""


def _query(broker: Broker, folder: Path, draw: random.Random) -> _Query:
    folder.mkdir(parents=True)
    return _Query(broker, Place(folder), create_topic(broker.servers, "outbox"), draw)


# -- frozen drivers ---------------------------------------------------------------------------------------------------


def outbox_zombies(broker: Broker, folder: Path, trials: int, seed: int, results: Results) -> None:
    """Freeze `trials` drivers, replace each by one that reads all input, and wake it."""
    draw = random.Random(seed)
    for number in range(trials):
        if number % _TRIALS_A_QUERY == 0:
            query = _query(broker, folder / f"{number:03}", draw)
        kind, why = _zombie(query)
        results.add(kind, why=why or query.wrong())


def _zombie(query: _Query) -> tuple[str, str]:
    query.feed()
    point = query.draw.choice((*POINTS, *IN_CHILDREN, "", ""))
    once = query.place.folder / "once"
    shutil.rmtree(once, ignore_errors=True)
    log = query.place.folder / "driver.log"
    before = log.stat().st_size if log.exists() else 0
    armed = f"{point}:stop:{query.draw.randint(1, 4)}" if point else ""
    zombie = start(query.place, armed, *query.arguments(), session=True)
    try:
        if point:
            reached = "the driver at its point"
            wait_until(lambda: zombie.poll() is not None or (once.is_dir() and any(once.iterdir())), reached, _ENDED_S)
        else:
            time.sleep(query.draw.uniform(4, 15))  # a random moment of the freeze
        kind = f"frozen at {point}" if point else "frozen at a random moment"
        if zombie.poll() is not None:
            return f"{kind}: it had ended", "" if zombie.returncode == 0 else f"ended with {zombie.returncode}"
        _signal(zombie.pid, signal.SIGSTOP)
        code, conditions, _ = query.run()
        if code != 0:
            return kind, f"the successor ended with {code}, {conditions}"
        replaced = log.stat().st_size
        _signal(zombie.pid, signal.SIGCONT)
        code = zombie.wait(_ENDED_S)
        said = log.read_bytes()[before:].decode(errors="replace")
        conditions = list(dict.fromkeys(_CONDITION.findall(log.read_bytes()[replaced:].decode(errors="replace"))))
        # A driver after its last batch, or before its first one, ends without an error or continues where its successor ended.
        typed = code == 0 or bool(conditions) or "CKPT_" in said
        return (
            f"{kind}: {conditions[0] if code and conditions else 'ended well' if not code else 'an error of Spark'}",
            (
                ""
                if typed or "ConcurrentModification" in said or "CONCURRENT" in said
                else f"ended with {code}: {said[-800:]}"
            ),
        )
    finally:
        if zombie.poll() is None:
            _signal(zombie.pid, signal.SIGKILL)
            zombie.wait()


def _signal(session: int, number: signal.Signals) -> None:
    """Signal every process of a session. Spark's Python workers have a process group of their own."""
    for pid, of, _ in processes():
        if of == session:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


# -- changed checkpoints ----------------------------------------------------------------------------------------------


def outbox_checkpoints(broker: Broker, folder: Path, trials: int, seed: int, results: Results) -> None:
    """Delete, copy, edit or rewind `trials` checkpoints. Each start is refused or branches."""
    draw = random.Random(seed)
    kinds = tuple(_CHANGES)
    for number in range(trials):
        query = _query(broker, folder / f"{number:03}", draw)
        kind = kinds[number % len(kinds)]
        query.feed(draw.randint(3, 6))
        # Half of the queries are killed first, so that a batch is open when the checkpoint is changed.
        if draw.random() < 0.5:
            query.run(points=f"{draw.choice(POINTS)}:kill:{draw.randint(2, 3)}")
        else:
            query.run()
        try:
            results.add(kind, why=_CHANGES[kind](query))
        except AssertionError as error:
            results.add(kind, why=str(error)[:800])


def _refused(query: _Query, *condition: str, more: tuple[str, ...] = ()) -> None:
    """Raise `AssertionError` unless a start is refused with its condition and publishes nothing."""
    before = query.found()
    code, conditions, said = query.run(*more)
    assert code != 0, "a changed checkpoint was accepted"
    assert set(conditions) & set(condition), f"refused with {conditions}: {said[-800:]}"
    assert query.found() == before, "a refused start has changed a sink"


def _continues(query: _Query, *more: str) -> str:
    query.feed(2)
    code, conditions, said = query.run(*more)
    return f"ended with {code}, {conditions}: {said[-800:]}" if code else query.wrong()


def _deleted(query: _Query) -> str:
    kept = query.place.folder / "kept"
    query.place.checkpoint.rename(kept)
    _refused(query, "CKPT_QUERY_FOREIGN")
    shutil.rmtree(query.place.checkpoint, ignore_errors=True)
    kept.rename(query.place.checkpoint)
    return _continues(query)


def _copied(query: _Query) -> str:
    """The query continues, and then an older copy of its checkpoint does: a branch, as for a rewound query."""
    copy = query.place.folder / "copy"
    _well(query)
    shutil.copytree(query.place.checkpoint, copy)
    query.feed(2)
    _well(query)
    return _branches(query, "--checkpoint", "copy")


def _moved(query: _Query) -> str:
    """A copy of the checkpoint continues, and then the query itself does: also a branch."""
    copy = query.place.folder / "copy"
    _well(query)
    shutil.copytree(query.place.checkpoint, copy)
    query.feed(2)
    _well(query, "--checkpoint", "copy")
    return _branches(query)


def _edited(query: _Query) -> str:
    """The offsets of the newest batch change. Before the outbox has committed that batch, Spark may change it."""
    offsets = query.place.checkpoint / "offsets"
    newest = max((path for path in offsets.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    (query.place.checkpoint / "commits" / newest.name).unlink(missing_ok=True)
    (query.place.checkpoint / "commits" / f".{newest.name}.crc").unlink(missing_ok=True)
    (offsets / f".{newest.name}.crc").unlink(missing_ok=True)
    text = newest.read_text()
    newest.write_text(re.sub(r'"batchTimestampMs":\d+', '"batchTimestampMs":1', text))
    if int(newest.name) > _newest_decided(query):
        return _continues(query)
    _refused(query, "CKPT_BATCH_UNEXPECTED", "CKPT_QUERY_FOREIGN")
    newest.write_text(text)
    return _continues(query)


def _newest_decided(query: _Query) -> int:
    epochs = Store.open(query.place.store, "orders", kind="outbox").log.state().epochs
    return max((each.spark_batch.number for each in epochs if each.spark_batch is not None), default=-1)


def _rewound(query: _Query) -> str:
    """The query rewinds by one to three batches."""
    _well(query)
    offsets = [int(path.name) for path in (query.place.checkpoint / "offsets").iterdir() if path.name.isdigit()]
    query.place.rewind(max(0, max(offsets) - query.draw.randint(1, 3)))
    return _branches(query)


def _well(query: _Query, *more: str) -> str:
    code, conditions, said = query.run(*more)
    assert code == 0, f"ended with {code}, {conditions}: {said[-800:]}"
    return said


def _branches(query: _Query, *more: str) -> str:
    """Start the query twice. The sinks must repeat exactly as many rows as the report counts."""
    said = _confirmed(query, *more)
    query.feed(2)
    said += _confirmed(query, *more)
    _well(query, *more)
    left = {epoch: int(rows) for epoch, rows in _LEFT.findall(said)}
    return query.wrong(sum(left.values()))


def _confirmed(query: _Query, *more: str) -> str:
    """Run the query. If its newest batch differs, confirm with the argument that the error names: it may be edited."""
    code, conditions, said = query.run(*more)
    if code and conditions == ["CKPT_BATCH_UNEXPECTED"] and (named := _RESTORE.search(said)):
        return _well(query, "--restore", named[1], *more)
    assert code == 0, f"ended with {code}, {conditions}: {said[-800:]}"
    return said


_CHANGES: dict[str, Callable[[_Query], str]] = {
    "deleted": _deleted,
    "copied": _copied,
    "moved": _moved,
    "edited": _edited,
    "rewound": _rewound,
}


# -- Spark Connect ----------------------------------------------------------------------------------------------------


def outbox_connect(broker: Broker, folder: Path, kills: int, seed: int, results: Results) -> None:
    """Kill a query through Spark Connect `kills` times: the function's process, its tasks and publishers, or all."""
    draw = random.Random(seed)
    for number in range(0, kills, _TRIALS_A_QUERY):
        query = _query(broker, folder / f"{number:03}", draw)
        arguments = query.arguments("--remote")
        for _ in range(min(_TRIALS_A_QUERY, kills - number)):
            query.feed()
            results.add(f"died: {die(query.place, draw, arguments)}")
        code, conditions, said = query.run("--remote")
        why = f"the last driver ended with {code}, {conditions}: {said[-800:]}" if code else ""
        wanted, found = expected(range(query.files)), query.found()
        compared(wanted, found[0], "Delta compared", why, results)
        compared(wanted, found[1], "Kafka compared", why, results)
