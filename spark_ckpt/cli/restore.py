"""`spark-ckpt restore`: the effects of restoring an epoch of one store; several stores restored to one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from spark_ckpt.cli.asked_sinks import sinks_behind
from spark_ckpt.cli.inputs import InputAgain, inputs_again
from spark_ckpt.cli.line import restore_stores
from spark_ckpt.cli.list import driver_fields, driver_of
from spark_ckpt.cli.options import AsJson, StorageOptions
from spark_ckpt.cli.output import print_facts, print_json, print_line, print_table, size, utc
from spark_ckpt.cli.stores import advice_for, open_store, open_stores
from spark_ckpt.connector import Json
from spark_ckpt.cursor_text import cursor_text
from spark_ckpt.epochs.identity import Confirmed
from spark_ckpt.epochs.log_state import LogState, taken_back
from spark_ckpt.epochs.records import Kind, ReaderMoved
from spark_ckpt.epochs.recovery import RestorePlan, SinkPlan, plan
from spark_ckpt.epochs.recovery_text import sink_lines
from spark_ckpt.epochs.restore import LATEST
from spark_ckpt.epochs.sinks_behind import lacking_after
from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.json_values import plain
from spark_ckpt.store.stage_folder import restore_call_of
from spark_ckpt.wording import epochs, one_or_many


def restore(
    stores: Annotated[
        list[str], typer.Argument(metavar="STORE TARGET | STORE...", help="A store and a target, or stores and --to.")
    ],
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="LINE", help="latest, line-N, PROGRAM@EPOCH, a time, or PROGRAM@EPOCH,... for all stores."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --to: change nothing.")] = False,
    fence: Annotated[bool, typer.Option("--fence", help="With --to: take the lease from drivers that run.")] = False,
    accept_new_sink: Annotated[
        list[str] | None,
        typer.Option(metavar="SINK", help="This sink is another table or topic from now on. May be repeated."),
    ] = None,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Show the consequences of restoring an epoch, or restore several stores to one line (--to).

    TARGET is "latest", an epoch number, or a savepoint. Without --to the command is a plan and changes nothing: the job
    itself restores, at a start with job.start(restore=...). Only then is it known that the program fits the state, and
    that no other driver runs. An outbox follows its query, which goes back first.

    With --to, the stores of programs that edges join go to one consistent line. A restore that was interrupted blocks
    starts; run the same command again.
    """
    if to is not None:
        if accept_new_sink:
            raise ConfigInvalid(
                "--accept-new-sink does not go with --to: the next start compares the sinks",
                hint=f"restore without it, then start with {Confirmed(new_sinks=frozenset(accept_new_sink)).call()}",
            )
        restore_stores(open_stores(stores, storage_option), to, dry_run, fence, as_json)
        return
    if len(stores) != 2 or fence:
        raise ConfigInvalid(
            "restore takes one store and a target, or any number of stores and --to",
            hint="spark-ckpt restore STORE TARGET, or spark-ckpt restore STORE... --to line-42",
        )
    _of_one_store(stores[0], stores[1], accept_new_sink, as_json, storage_option)


def _of_one_store(
    store: str,
    target: str,
    accept_new_sink: list[str] | None,
    as_json: bool,
    storage_option: list[str] | None,
) -> None:
    wanted = int(target) if target.isdecimal() else target
    new = list(accept_new_sink or [])
    opened = open_store(store, storage_option)
    found, not_compared = sinks_behind(opened)
    late = [each for each in found if each.sink not in new]  # a new sink has no epoch of the one before
    # A sink from an older backup lacks epochs that the log counts as published: the plan has to publish them again.
    log_state = opened.log.state()
    log_state = taken_back(log_state, lacking_after(late, log_state, opened.log.manifest))
    with advice_for(opened):
        planned = plan(log_state, wanted, opened.log.manifest, opened.verify, frozenset(new))
    inputs = inputs_again(opened, log_state, planned)
    # With a sink that lacks rows a start continues from a named epoch only.
    named = planned.epoch if late and wanted == LATEST else wanted
    call = restore_call_of(opened.location, log_state, named, new)
    if as_json:
        again: list[Json] = [each.fields() for each in inputs]
        print_json(
            {**_fields(log_state, planned), "inputs": again, "sinks_behind": [plain(asdict(each)) for each in late]}
        )
    else:
        for sink in late:
            print_line(f"{sink.sentence}\n")
        for name, why in not_compared.items():
            print_line(f"sink {name} was not compared: {why}\n")
        _print_plan(log_state, planned, inputs, call)
    # Last: the plan is printed all the same, and the exit code says that the job would not start.
    unknown = next((each.error for each in inputs if each.error is not None), None)
    if unknown is not None:
        raise unknown


def _print_plan(log_state: LogState, planned: RestorePlan, inputs: Sequence[InputAgain], call: str) -> None:
    _print_head(log_state, planned)
    # the consequences first: rows that come again, and who has rows that are undone
    for sink in planned.sinks:
        _print_sink(planned, sink, log_state.kind)
    if planned.abandoned:
        for entry in log_state.readers.values():
            print_line(f"\nreader of edge {entry.row.edge}: {_undone(entry.row, planned.abandoned[0])}")
    for each in inputs:
        print_line(f"\nsource {each.source}: {each.sentence}")
    _print_sources(planned)
    _print_state(planned)
    print_line(f"\nNothing was changed. To do it: {call}")


def _undone(reader: ReaderMoved, first: int) -> str:
    """Return the effect on a job that reads an edge. `first`: the oldest epoch that is undone."""
    return f"{reader.place} stops with CKPT_SOURCE_UNDONE if it has read rows of epoch {first} or later, and says its restore="


def _fields(log_state: LogState, planned: RestorePlan) -> dict[str, Json]:
    fields = {name: plain(value) for name, value in asdict(planned).items()}
    return {**fields, "driver": driver_fields(log_state)}


def _print_head(log_state: LogState, planned: RestorePlan) -> None:
    beginning = ", the beginning: no state, sources' starts" if log_state.kind == "job" else ", the beginning"
    taken = f", taken {utc(planned.created_ms)}" if planned.created_ms else beginning
    print_facts(
        {
            log_state.kind: planned.job,
            "restores": f"epoch {planned.epoch}{taken}",
            "asked for": planned.restored_from,
            "leaves": _left(planned.abandoned) if planned.abandoned else None,
            "begins": f"incarnation {planned.incarnation}, its first epoch is {planned.next_epoch}",
            "driver now": driver_of(log_state),
        }
    )


def _left(numbers: Sequence[int]) -> str:
    return f"{epochs(numbers)} (kept until retention forgets {one_or_many(len(numbers), 'it', 'them')})"


def _print_sources(planned: RestorePlan) -> None:
    if planned.cursors:
        print_line()
        print_table(
            ("source", "reads on from"), [(name, cursor_text(cursor)) for name, cursor in planned.cursors.items()]
        )


def _print_state(planned: RestorePlan) -> None:
    if planned.state:
        print_line()
        rows = [(each.operator, each.key_groups, each.files, size(each.bytes)) for each in planned.state]
        print_table(("state of operator", "key groups", "files", "size"), rows)


def _print_sink(planned: RestorePlan, sink: SinkPlan, kind: Kind) -> None:
    print_line(f"\nsink {sink.sink}:")
    for line in sink_lines(planned.epoch, sink, kind):
        print_line(f"  - {line}")
