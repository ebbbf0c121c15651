"""The same random histories as files on disk lead to the same line."""

from __future__ import annotations

import json
from pathlib import Path

from rewind_kit import WrittenQuery, WrittenTable, planned
from simulated import Simulated

from checkpoint_protocols.ids import ProcessId
from spark_ckpt.errors import ConfigInvalid, RewindOutOfReach
from spark_rewind.plan import RewindPlan

HISTORIES = 60


def written(history: Simulated, folder: Path) -> tuple[list[Path], list[Path]]:
    """Write a checkpoint for each query, with a snapshot for each retained state, and a log for each table."""
    tables = {name: WrittenTable(folder / "lake" / name) for name, each in history.tables.items() if each.versions}
    queries = {name: WrittenQuery(folder / name) for name in history.queries}
    for name, table in tables.items():
        sim = history.tables[name]
        for writer, at_ms in zip(sim.versions, sim.times, strict=True):
            table.version(*([(queries[writer[0]].query, writer[1])] if writer else []), at_ms=at_ms)
    for name, query in queries.items():
        write_query(history, name, query, tables)
    return [each.folder for each in queries.values()], [each.root for each in tables.values()]


def write_query(history: Simulated, name: str, query: WrittenQuery, tables: dict[str, WrittenTable]) -> None:
    sim = history.queries[name]
    partition = query.folder / "state" / "0" / "0"
    partition.mkdir(parents=True)
    for number, (ends, began_ms, committed_ms) in enumerate(zip(sim.ends, sim.began, sim.committed, strict=True)):
        offsets = [
            tables[table].at(end.version, end.index, end.snapshot) if end else None for table, end in ends.items()
        ]
        query.batch(*offsets, commit=False, at_ms=began_ms)
        if committed_ms is not None:
            query.commit(number, committed_ms)
        if number not in sim.gone:
            (partition / f"{number + 1}.snapshot").write_bytes(b"")
        if number < sim.purged:
            (query.folder / "offsets" / str(number)).unlink()
            (query.folder / "commits" / str(number)).unlink()


def line_of(plan: RewindPlan, history: Simulated) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for each in plan.queries:
        unfinished = each.stays and each.unfinished is not None
        settled = -1 if each.newest is None else each.newest
        found[each.name] = each.batch if not each.stays else None if unfinished else settled
    found |= {Path(each.path).name: each.version for each in plan.tables}
    return found


def test_files_lead_to_the_line_of_the_ledger(tmp_path):
    wrong, compared = {}, 0
    for seed in range(HISTORIES):
        history = Simulated(seed)
        for table in history.tables.values():
            table.gone.clear()
        target = history.target()
        folders, tables = written(history, tmp_path / str(seed))
        to = str(target).replace("table /lake/", f"{tmp_path / str(seed)}/lake/")
        best = history.greatest(target)
        expected = None if best is None else {_short(name): at for name, at in best.items()}
        try:
            found = line_of(planned(folders, to, tables), history)
        except RewindOutOfReach:
            found = None
        except ConfigInvalid as error:  # a batch that is not over is no target
            assert "there is no" in error.what
            continue
        compared += 1
        if found != expected:
            wrong[seed] = json.dumps([to, found, expected])
    assert wrong == {}
    assert compared > HISTORIES / 2


def _short(process: ProcessId) -> str:
    return process.removeprefix("table /lake/")
