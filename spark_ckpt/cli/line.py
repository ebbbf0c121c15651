"""`spark-ckpt line`: consistent cuts over the stores of several programs, and the restore of all stores to one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from spark_ckpt.cli.list import driver_of
from spark_ckpt.cli.options import AsJson, StorageOptions
from spark_ckpt.cli.output import Id, iso, print_facts, print_json, print_line, print_table, utc
from spark_ckpt.cli.stores import open_stores
from spark_ckpt.connector import Json
from spark_ckpt.epochs.lines import Line, Program, branch_ends, greatest, lines, moment_ms, named_by, through, to_target
from spark_ckpt.epochs.recovery import RestorePlan, plan
from spark_ckpt.epochs.recovery_text import sink_lines
from spark_ckpt.errors import ConfigInvalid, EpochNotFound
from spark_ckpt.json_values import plain
from spark_ckpt.program_edges.line_stores import (
    Outside,
    StoreLines,
    before_restore,
    freed_before,
    read_stores,
    restore_line,
)
from spark_ckpt.program_edges.wall_clock import WallClockCut, wall_clock_cut
from spark_ckpt.store.store import Store
from spark_ckpt.wording import counted, epochs


def line(
    stores: Annotated[
        list[str],
        typer.Argument(metavar="STORE...", help="The stores of the programs; the folder of a program with stages."),
    ],
    most: Annotated[int, typer.Option("--last", min=1, help="Lines to list.")] = 10,
    why: Annotated[
        str | None, typer.Option("--why", metavar="PROGRAM@EPOCH", help="Say why an epoch is in no line.")
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of", metavar="TIME", help="Count what a restore of each program to its own wall clock would double."
        ),
    ] = None,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """List consistent cuts over programs that edges join, newest first: one epoch of each.

    No program of a cut has read rows that its sender has not committed in the cut. With protocol="index" cuts have
    names. Changes nothing.
    """
    known = read_stores(open_stores(stores, storage_option))
    if why is not None:
        _print_why(known.programs, why, as_json)
        return
    if as_of is not None:
        _print_wall_clock(known, as_of, as_json)
        return
    found = lines(known.programs, most)
    # Without a line the search itself says why.
    reasons = greatest(known.programs).reasons
    if as_json:
        print_json({"lines": [_fields(each) for each in found], "reasons": list(reasons), **_outside_json(known)})
        return
    names = list(known.programs)
    rows = [
        (each.name or "-", _taken(known.programs, each), *(Id(each.epochs[name]) for name in names)) for each in found
    ]
    print_table(("line", "taken", *names), rows)
    for reason in reasons:
        print_line(f"\n{reason}")
    for each in known.outside:
        print_line(f"\n{_outside(each)}")


def restore_stores(stores: Sequence[Store], target: str, dry_run: bool, fence: bool, as_json: bool) -> None:
    """Restore several stores to the line that `target` names, or only show it (`dry_run`)."""
    # Epochs of all programs may name another branch: the undo of a restore does.
    known = read_stores(stores, branch_ends(target, len(stores)))
    chosen = to_target(known.programs, target)
    # Asked before the restore, which makes its epochs the newest ones.
    before, freed = named_by(before_restore(known, target)), freed_before(known, target)
    plans = {
        name: plan(each.log_state, chosen.epochs[name], each.store.log.manifest, each.store.verify)
        for name, each in known.stores.items()
        if name not in freed
    }
    began = {} if dry_run else restore_line(known, chosen, target, fence)
    if as_json:
        programs: dict[str, Json] = {name: _plan_fields(planned) for name, planned in plans.items()}
        print_json(
            {
                **_fields(chosen),
                "programs": programs,
                "incarnations": dict(began),
                "before": before,
                **_outside_json(known),
            }
        )
        return
    for name, planned in plans.items():
        _print_plan(known, name, planned)
    for name in sorted(freed):
        print_line(f"program {name} was restored before the command was interrupted, and stays as it is")
    for reason in chosen.reasons:
        print_line(f"\n{reason}")
    for each in known.outside:
        print_line(f"\n{_outside(each)}")
    if dry_run:
        print_line(f"\nNothing was changed. To do it: the same command without --dry-run ({target})")
    else:
        print_line("\nDone. Start the programs as usual: each continues from its epoch of the line.")
        print_line(f"To undo it: the same command with --to {before}, while retention keeps these epochs.")


def _print_plan(known: StoreLines, name: str, planned: RestorePlan) -> None:
    log_state = known.stores[name].log_state
    print_facts(
        {
            "program": name,
            "restores": f"epoch {planned.epoch}, taken {utc(planned.created_ms)}",
            "leaves": epochs(planned.abandoned) if planned.abandoned else None,
            "driver now": driver_of(log_state),
        }
    )
    for sink in planned.sinks:
        if sink.sink in known.stores[name].store.published_edges():
            continue  # readers of an edge go back with it
        for sentence in sink_lines(planned.epoch, sink):
            print_line(f"  - sink {sink.sink}: {sentence}")
    print_line()


def _print_why(programs: Mapping[str, Program], why: str, as_json: bool) -> None:
    name, at, epoch = why.rpartition("@")
    if not at or not epoch.isdecimal():
        raise ConfigInvalid(f"--why {why} is not PROGRAM@EPOCH", hint="write for example --why orders@17")
    try:
        found = through(programs, name, int(epoch))
    except EpochNotFound as error:
        # Without reasons it is no answer: the program or its epoch does not exist.
        if error.context.get("reasons") is None:
            raise
        reasons = str(error.context["reasons"]).split("; ")  # as `epochs.lines` joins them
        if as_json:
            print_json({"in_a_line": False, "reasons": list(reasons)})
            return
        print_line(f"{error.what}:")
        for reason in reasons:
            print_line(f"  - {reason}")
        return
    if as_json:
        print_json({"in_a_line": True, **_fields(found)})
        return
    print_line("it is in this line: " + ", ".join(f"{each}@{at}" for each, at in found.epochs.items()))


def _print_wall_clock(known: StoreLines, as_of: str, as_json: bool) -> None:
    at_ms = moment_ms(as_of)
    cut = wall_clock_cut(known, at_ms)
    line = dict(cut.line.epochs) if cut.line is not None else None
    if as_json:
        edges: list[Json] = [plain(asdict(each)) for each in cut.edges]
        print_json({"at": iso(at_ms), "epochs": dict(cut.epochs), "doubled": cut.doubled, "edges": edges, "line": line})
        return
    print_table(
        ("edge", "sender at", "reader at", "doubled rows", "in transit", "deleted unread"),
        [
            (
                f"{each.sender} -> {each.reader}",
                Id(cut.epochs[each.sender]),
                Id(cut.epochs[each.reader]),
                each.doubled,
                each.in_transit,
                counted(each.lost_epochs, "epoch") if each.lost_epochs else "-",
            )
            for each in cut.edges
        ],
    )
    print_line(f"\n{_wall_clock_sentence(cut, utc(at_ms))}")


def _wall_clock_sentence(cut: WallClockCut, at: str) -> str:
    if cut.consistent:
        return f"The wall clocks at {at} make a consistent line: nothing is doubled or lost."
    waiting = sum(each.in_transit for each in cut.edges)
    lost = sum(each.lost_epochs for each in cut.edges)
    kept = f"{counted(waiting, 'row')} in transit would be read again from the edges"
    gone = f"the rows of {counted(lost, 'deleted or damaged epoch')} would be lost" if lost else "no row would be lost"
    said = (
        f"Restored by wall clock to {at}, readers would have {counted(cut.doubled, 'row')} that their senders send again; "
        f"{kept}, {gone}."
    )
    if cut.line is None:
        return f"{said}\nThere is no consistent line so old."
    line = ", ".join(f"{name}@{epoch}" for name, epoch in cut.line.epochs.items())
    return f"{said}\nThe consistent line of that time is {line}: spark-ckpt restore STORE... --to TIME restores it."


def _fields(found: Line) -> dict[str, Json]:
    return {"line": found.name or None, "epochs": dict(found.epochs), "reasons": list(found.reasons)}


def _plan_fields(planned: RestorePlan) -> dict[str, Json]:
    return {
        "epoch": planned.epoch,
        "taken": iso(planned.created_ms),
        "leaves": list(planned.abandoned),
        "sinks": {sink.sink: list(sink_lines(planned.epoch, sink)) for sink in planned.sinks},
    }


def _outside_json(known: StoreLines) -> dict[str, Json]:
    return {"outside": [_outside(each) for each in known.outside]}


def _outside(each: Outside) -> str:
    if each.reads:
        return (
            f"{each.program} reads edge {each.edge} of {each.place}, which is not among the stores: it does not go back"
        )
    return (
        f"edge {each.edge} of {each.program} is read at {each.place}, which is not among the stores: "
        "it stops with CKPT_SOURCE_UNDONE if it has read more"
    )


def _taken(programs: Mapping[str, Program], found: Line) -> str:
    return utc(max(programs[name].at(epoch).created_ms for name, epoch in found.epochs.items()))
