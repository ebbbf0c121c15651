"""`spark-ckpt rewind pin`, `points`, `unpin`: keep consistent points longer than the queries do.

Their modules are loaded when a command runs: planning, in the same application, needs none of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_ckpt.cli.options import AsJson
from spark_ckpt.cli.output import iso, print_json, print_line, print_table, size, utc
from spark_ckpt.wording import counted
from spark_rewind.cli.plan_text import print_list
from spark_rewind.declared import Declared, read_declared
from spark_rewind.pins import bytes_of
from spark_rewind.planning import RewindRequest

if TYPE_CHECKING:
    from spark_ckpt.connector import Json
    from spark_rewind.pins import PinnedPoint
    from spark_rewind.point_reports import PointReport

Pins = Annotated[Path, typer.Argument(metavar="PINS", help="The folder of pinned points.")]
Checkpoints = Annotated[
    list[str],
    typer.Argument(
        metavar="DIR...", help="The checkpoint folder of each query, or the storage root of a declarative pipeline."
    ),
]
Tables = Annotated[
    list[str] | None,
    typer.Option("--table", metavar="DIR", help="A Delta table, or a folder with tables in it. May be repeated."),
]
Outboxes = Annotated[
    list[str] | None,
    typer.Option("--outbox", metavar="STORE", help="The store of a query's outbox. May be repeated."),
]
DeclaredFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="YAML: who writes which topic, folder or table. See docs/rewind.md."),
]


def pin(
    checkpoints: Checkpoints,
    into: Annotated[Path, typer.Option(metavar="PINS", help="The folder of pinned points; made if it is not there.")],
    name: Annotated[str | None, typer.Option(help="A point with a name stays until `unpin`.")] = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="All points together; the oldest without a name go for a new one."),
    ] = None,
    table: Tables = None,
    declared: DeclaredFile = None,
    outbox: Outboxes = None,
    table_files: Annotated[
        bool,
        typer.Option("--table-files", help="Hold data files of tables, too, by hard link: VACUUM cannot take them."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Keep the greatest consistent line as of now, with the files that its batches need. The queries may run."""
    from spark_rewind.pinning import PinRequest, take_pin

    known = read_declared(declared) if declared is not None else Declared()
    plan = RewindRequest(checkpoints, "", table or (), known, outboxes=outbox or ())
    taken = take_pin(
        PinRequest(plan, into, name, None if budget is None else bytes_of(budget), table_files),
        time.time_ns() // 1_000_000,
    )
    point, dropped = taken.kept.point, [each.point.label if each.point else each.folder.name for each in taken.dropped]
    if point is None:
        raise AssertionError
    if as_json:
        print_json({"point": _brief(point), "dropped": dropped})
        return
    print_line(
        f"pinned {point.label}: {counted(len(point.queries), 'query', 'queries')}, {counted(len(point.tables), 'table')}"
    )
    for each in point.queries:
        print_line(f"  {each.name} at {_batch(each.batch)}")
    for one in point.tables:
        print_line(f"  {one.path} at {_version(one.version)}")
    for kept in point.outboxes:
        print_line(f"  outbox {kept.name} at epoch {kept.epoch}")
    for gone in dropped:
        print_line(f"over the budget: point {gone} was removed")


def points(pins: Pins, as_json: AsJson = False) -> None:
    """List the pinned points, with the parts that are gone."""
    from spark_rewind.point_reports import report_points

    found = report_points(pins)
    if as_json:
        print_json(
            {"format": 1, "bytes": found.held_bytes, "points": [each.model_dump(mode="json") for each in found.points]}
        )
        return
    columns = ("point", "name", "taken at", "queries", "tables", "held", "restorable")
    print_table(columns, [_row(each) for each in found.points])
    print_line(
        f"{counted(len(found.points), 'point')} {'holds' if len(found.points) == 1 else 'hold'} {size(found.held_bytes)}"
    )
    print_list("gone:", [f"{each.label}: {why}" for each in found.points for why in each.gone])


def unpin(
    pins: Pins,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The point's name, or its id.")],
    as_json: AsJson = False,
) -> None:
    """Delete a pinned point."""
    from spark_rewind.pins import unpin as take_away

    gone = take_away(pins, name)
    if as_json:
        print_json({"id": gone.folder.name, "name": gone.point.name if gone.point else None})
        return
    print_line(f"point {gone.point.label if gone.point else gone.folder.name} is taken away")


def _brief(point: PinnedPoint) -> dict[str, Json]:
    return {
        "id": point.id,
        "name": point.name,
        "taken_at": iso(point.taken_at_ms),
        "queries": {each.name: each.batch for each in point.queries},
        "tables": {each.path: each.version for each in point.tables},
        "outboxes": {each.name: each.epoch for each in point.outboxes},
    }


def _row(each: PointReport) -> Sequence[object]:
    return (
        each.id,
        each.name,
        utc(each.taken_at_ms) if each.taken_at_ms is not None else None,
        ", ".join(f"{name}@{batch}" for name, batch in each.queries.items()) or None,
        ", ".join(f"{Path(path).name}@{version}" for path, version in each.tables.items()) or None,
        size(each.held_bytes),
        not each.gone,
    )


def _batch(number: int) -> str:
    return "the beginning" if number < 0 else f"batch {number}"


def _version(number: int) -> str:
    return "its beginning" if number < 0 else f"version {number}"
