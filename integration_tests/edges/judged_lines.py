"""Judge of the named lines of the two programs, from their stores alone: states, positions and rows, without Spark.

python -m integration_tests.edges.judged_lines ORDERS_STORE TOTALS_STORE
"""

from __future__ import annotations

import sys
from pathlib import Path

from spark_ckpt.epochs.lines import lines
from spark_ckpt.epochs.records import Position
from spark_ckpt.program_edges.line_stores import read_stores
from spark_ckpt.store.existing import existing_store
from spark_ckpt.store.store import Store


class NoCut(AssertionError):
    """The verdict: the states of a line never existed together."""


def judged_lines(orders: Path, totals: Path) -> int:
    """Return the number of complete lines of different epochs. Raises `NoCut` for a line that is no consistent cut."""
    senders, readers = existing_store(str(orders)), existing_store(str(totals))
    known = read_stores([senders, readers])
    found = [line for line in lines(known.programs, 10_000) if line.number]
    for line in found:
        _judge(senders, readers, line.epochs["orders"], line.epochs["totals"], line.name)
    return len(found)


def _judge(senders: Store, readers: Store, sent_at: int, read_at: int, name: str) -> None:
    """Compare the numbers that the sender has given with those that the reader has checked, key by key."""
    given = {row["k"]: row["count"] for row in _state(senders, "number", sent_at)}
    checked = {row["k"]: (row["last"], row["wrong"]) for row in _state(readers, "check", read_at)}
    if any(wrong for _, wrong in checked.values()):
        raise NoCut(f"{name}: a key's numbers have a gap or a repetition: {checked}")
    if orphans := {key: last for key, (last, _) in checked.items() if last > given.get(key, 0)}:
        raise NoCut(f"{name}: epoch {read_at} of the reader has rows that epoch {sent_at} has not sent: {orphans}")
    position = Position.model_validate(readers.log.manifest(read_at).cursors["totals"])
    taken, passed = sum(last for last, _ in checked.values()), _rows_up_to(senders, sent_at, position)
    if taken != passed:
        raise NoCut(f"{name}: the reader's state counts {taken} rows, its position {passed}")


def _state(store: Store, operator: str, epoch: int) -> list[dict[str, object]]:
    snapshot = store.log.manifest(epoch).operators.get(operator)
    rows: list[dict[str, object]] = store.state(operator).read(epoch).to_pylist() if snapshot and snapshot.files else []
    return rows


def _rows_up_to(senders: Store, sent_at: int, position: Position) -> int:
    """Return the rows before a position, of epochs that the line has."""
    rows = 0
    for brief in senders.log.state().lineage(sent_at):
        files = senders.staged("totals").staged(senders.log.manifest(brief.epoch))
        last = position.files if brief.epoch == position.epoch else len(files)
        rows += sum(file.rows for file in files[:last]) if brief.epoch <= position.epoch else 0
    return rows


if __name__ == "__main__":
    print(f"{judged_lines(Path(sys.argv[1]), Path(sys.argv[2]))} lines are consistent cuts")
