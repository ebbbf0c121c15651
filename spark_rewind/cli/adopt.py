"""`spark-ckpt adopt`: a plain query's checkpoint becomes the first epoch of a job."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from spark_ckpt.cli.command_session import spark_for
from spark_ckpt.cli.options import AsJson, StorageOptions, StoreUri, pairs
from spark_ckpt.cli.output import print_json, print_line, print_table, size, utc
from spark_ckpt.connector import Json
from spark_ckpt.json_values import plain
from spark_ckpt.spark_internals.operator_metadata import WORDS
from spark_rewind.adopt.adopting import Adoption, AdoptTarget, TakenState, would_adopt
from spark_rewind.adopt.adopting import adopt as adopt_query
from spark_rewind.adopt.plan import AdoptRequest
from spark_rewind.cli.apply import Watch, pause

Sources = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=NUMBER", help="Name in the job of the query's source of this number. NAME for the only one."
    ),
]
Operators = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=NUMBER", help="Name in the job of the operator of this number, as for --source."),
]
SparkOperators = Annotated[
    bool,
    typer.Option(
        "--spark-operators",
        help="Take the state of all operators, for a job that has them inside of transform.",
    ),
]
KeyGroups = Annotated[
    int | None,
    typer.Option(
        "--key-groups", min=1, max=32768, help="How many the operators get; as a job on this machine would have."
    ),
]


def adopt(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="The checkpoint folder of the query, which is stopped.")
    ],
    store: StoreUri,
    job: Annotated[str, typer.Option(help="The name that the job has.")],
    source: Sources = None,
    operator: Operators = None,
    spark_operators: SparkOperators = False,
    key_groups: KeyGroups = None,
    unfinished: Annotated[
        Literal["done", "again"] | None,
        typer.Option(help="Treat a batch that was not committed as written by the sink (done), or read it again."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="The Delta table or file sink's folder that the query writes: says whether it has that batch.",
        ),
    ] = None,
    watch_s: Watch = 10,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan; write nothing.")] = False,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Make the checkpoint of a plain query the first epoch of a job. The job continues at the next record, with all state.

    Stop the query; it must not start again. A query that runs is refused, but one that waits for input or for its trigger
    goes unnoticed. Its checkpoint stays unchanged. The store is new, or that of the query's outbox.

    Supported are Kafka and Delta sources, the state of applyInPandasWithState, and that of any operator with --spark-operators.
    Only the state of applyInPandasWithState needs a JVM. See docs/migrating.md.
    """
    request = AdoptRequest(
        checkpoint, source or (), operator or (), unfinished, output, spark_operators=spark_operators
    )
    target = AdoptTarget(store, job, pairs(storage_option, "--storage-option"), key_groups)
    wait = pause(watch_s)
    with spark_for("spark-ckpt adopt") as session:
        found = would_adopt(request, target, session) if dry_run else adopt_query(request, target, session, wait)
    if as_json:
        print_json(_fields(found))
    else:
        _print(found, target)


def _fields(found: Adoption) -> dict[str, Json]:
    taking = found.taking
    return {
        "query": taking.query,
        "checkpoint": str(taking.folder),
        "batch": taking.batch,
        "epoch": found.epoch,
        "sources": {
            name: {"kind": stand.kind, "cursor": plain(stand.cursor)} for name, stand in sorted(taking.sources.items())
        },
        "unread": list(taking.unread),
        "operators": {
            each.operator: {
                "number": each.number,
                "key": each.key,
                "state": each.state,
                "keys": each.keys,
                "timeouts": each.timed,
                "key_groups": each.key_groups,
                "size_bytes": each.size_bytes,
            }
            for each in found.states
        },
        "spark_operators": [each.name for each in taking.spark_operators],
        "watermark_ms": taking.watermark_ms,
        "late_watermark_ms": taking.late_ms,
        "notes": list(taking.notes),
    }


def _print(found: Adoption, target: AdoptTarget) -> None:
    taking = found.taking
    behind = f"after batch {taking.batch}" if taking.batch >= 0 else "before its first batch"
    print_line(
        f"query {taking.query} {behind}{'' if found.epoch is None else f', now epoch {found.epoch} of job {target.job}'}"
    )
    print_line()
    rows = [(name, stand.kind, stand.position) for name, stand in sorted(taking.sources.items())]
    print_table(
        ("source", "kind", "continues at"),
        [*rows, *((name, "-", "its start: nothing was read") for name in taking.unread)],
    )
    if found.states:
        print_line()
        columns = ("operator", "keys", "with a timeout", "key groups", "size", "key", "state")
        print_table(columns, [_state_row(each) for each in found.states])
    if taking.spark_operators:
        print_line()
        print_table(
            ("operator of Spark", "kind", "partitions"),
            [(each.number, WORDS.get(each.name, each.name), each.partitions) for each in taking.spark_operators],
        )
    if taking.watermark_ms:
        print_line(f"\nwatermark {utc(taking.watermark_ms)}")
    for note in taking.notes:
        print_line(f"\n{note}")
    print_line()
    if found.epoch is None:
        print_line("Nothing was changed.")
    else:
        print_line(
            "Do not start the plain query again: it would write these rows a second time. Its checkpoint is as it was."
        )
        print_line(f"Start the job {target.job} with this store, and with these names of sources and operators.")


def _state_row(each: TakenState) -> tuple[object, ...]:
    stored = None if each.size_bytes is None else size(each.size_bytes)
    return (each.operator, each.keys, each.timed, each.key_groups, stored, each.key, each.state)
