"""`spark-ckpt show`: the content of one epoch."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_ckpt.cli.list import epoch_fields
from spark_ckpt.cli.options import AsJson, StorageOptions, StoreUri
from spark_ckpt.cli.output import Id, print_facts, print_json, print_line, print_table, size, utc
from spark_ckpt.cli.stores import chosen_epoch, open_store, status_of
from spark_ckpt.connector import Json
from spark_ckpt.cursor_text import cursor_text
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.parts import described
from spark_ckpt.epochs.records import EdgeCut, Manifest, OperatorSnapshot, StagedOutput
from spark_ckpt.json_values import plain
from spark_ckpt.spark_internals.operator_metadata import WORDS
from spark_ckpt.wording import counted


def show(
    store: StoreUri,
    epoch: Annotated[
        int | None, typer.Argument(metavar="[EPOCH]", help="The epoch's number; the newest if left out.")
    ] = None,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Show one epoch: source cursors, state and output."""
    log = open_store(store, storage_option).log
    manifest = log.manifest(chosen_epoch(log.state(), epoch))
    log_state = log.known()  # that has the epoch: a running driver may have committed it since the first read
    if as_json:
        print_json(_fields(log_state, manifest))
        return
    _print_head(log_state, manifest)
    _print_cursors(manifest)
    _print_operators(manifest)
    _print_sparks_operators(manifest)
    _print_watermarks(manifest)
    _print_edges(manifest)
    _print_outputs(log_state, manifest)
    _print_identities(manifest)


def _fields(log_state: LogState, manifest: Manifest) -> dict[str, Json]:
    brief = log_state.by_id[manifest.epoch]
    return {
        log_state.kind: manifest.job,
        **epoch_fields(log_state, brief, status_of(log_state, brief), manifest.state_bytes),
        "spark_batch": manifest.spark_batch.model_dump() if manifest.spark_batch is not None else None,
        "watermark_ms": manifest.watermark_ms,
        "cursors": plain(manifest.cursors),
        "operators": [_operator_fields(each) for each in manifest.operators.values()],
        "spark_state": manifest.spark_state.model_dump() if manifest.spark_state is not None else None,
        "edges": [_edge_fields(each) for each in manifest.edges.values()],
        "identities": {
            "sources": plain(manifest.source_identities),
            "sinks": {name: dict(each.parts) for name, each in manifest.sink_identities.items()},
        },
        "outputs": [_output_fields(log_state, manifest.epoch, each) for each in manifest.outputs.values()],
        "held": [_held_fields(each) for each in manifest.held.values()],
        "rejected": dict(manifest.rejected),
    }


def _operator_fields(snapshot: OperatorSnapshot) -> dict[str, Json]:
    return {
        "operator": snapshot.operator,
        "key_groups": snapshot.key_groups,
        "key_schema": snapshot.key_schema,
        "state_schema": snapshot.state_schema,
        "files": len(snapshot.files),
        "bytes": sum(file.size_bytes for file in snapshot.files),
        "watermarks_ms": dict(snapshot.watermarks),
        "late_rows": snapshot.late_rows,
    }


def _edge_fields(cut: EdgeCut) -> dict[str, Json]:
    return {
        "edge": cut.edge,
        "row_schema": cut.row_schema,
        "consumed": cut.consumed,
        "produced": cut.produced,
        "in_flight": cut.produced - cut.consumed,
        "files": len(cut.files),
        "bytes": sum(file.size_bytes for file in cut.files),
    }


def _output_fields(log_state: LogState, epoch: int, output: StagedOutput) -> dict[str, Json]:
    return {**_held_fields(output), "published": epoch not in log_state.unacked(output.sink)}


def _held_fields(output: StagedOutput) -> dict[str, Json]:
    return {
        "sink": output.sink,
        "rows": output.rows,
        "files": len(output.files),
        "bytes": sum(file.size_bytes for file in output.files),
        "staged_in": output.root or "store",
    }


def _batch(manifest: Manifest) -> dict[str, str]:
    batch = manifest.spark_batch
    return {} if batch is None else {"batch": f"{batch.number} of query {batch.query}"}


def _print_head(log_state: LogState, manifest: Manifest) -> None:
    print_facts(
        {
            log_state.kind: manifest.job,
            **_batch(manifest),
            "epoch": Id(manifest.epoch),
            "status": status_of(log_state, log_state.by_id[manifest.epoch]),
            "incarnation": Id(manifest.incarnation),
            "extends": f"epoch {manifest.base}" if manifest.base else "nothing",
            "taken": f"{utc(manifest.created_ms)} ({manifest.reason})",
            "rows in": manifest.rows_in if log_state.kind == "job" else None,
            "rows out": manifest.rows_out,
            "rejected": sum(manifest.rejected.values()) or None,
            "watermark": utc(manifest.watermark_ms) if manifest.watermark_ms else None,
        }
    )


def _print_cursors(manifest: Manifest) -> None:
    if manifest.cursors:
        print_line()
        lags = manifest.timings.lag_rows if manifest.timings else {}
        rows = [(name, cursor_text(cursor, lags.get(name))) for name, cursor in manifest.cursors.items()]
        print_table(("source", "reads on from"), rows)


def _print_operators(manifest: Manifest) -> None:
    if manifest.operators:
        print_line()
        columns = ("operator", "key groups", "files", "size", "key", "state")
        print_table(columns, [_operator_row(each) for each in manifest.operators.values()])


def _print_sparks_operators(manifest: Manifest) -> None:
    state = manifest.spark_state
    if state is not None:
        print_line()
        store = state.provider.rpartition(".")[2].removesuffix("StateStoreProvider")
        total = f"{counted(state.files, 'file')}, {size(state.state_bytes)}, {counted(state.partitions, 'partition')}, {store}"
        rows = [(f"{number}:{name}", WORDS.get(name, name)) for number, name in enumerate(state.operators)]
        print_table((f"operator of Spark ({total})", "kind"), rows)


def _operator_row(snapshot: OperatorSnapshot) -> tuple[object, ...]:
    total = size(sum(file.size_bytes for file in snapshot.files))
    schemas = (snapshot.key_schema, snapshot.state_schema)
    return (snapshot.operator, snapshot.key_groups, len(snapshot.files), total, *schemas)


def _print_watermarks(manifest: Manifest) -> None:
    timed = [each for each in manifest.operators.values() if each.watermarks or each.late_rows]
    rows = [
        (each.operator, name, utc(ms), each.late_rows) for each in timed for name, ms in sorted(each.watermarks.items())
    ]
    if rows:
        print_line()
        print_table(("operator", "input", "watermark", "late rows of the operator"), rows)


def _print_edges(manifest: Manifest) -> None:
    if manifest.edges:
        print_line()
        columns = ("edge", "consumed", "produced", "in flight", "files", "size", "rows")
        print_table(columns, [_edge_row(each) for each in manifest.edges.values()])


def _edge_row(cut: EdgeCut) -> tuple[object, ...]:
    total = size(sum(file.size_bytes for file in cut.files))
    positions = (cut.consumed, cut.produced, cut.produced - cut.consumed)
    return (cut.edge, *positions, len(cut.files), total, cut.row_schema)


def _print_outputs(log_state: LogState, manifest: Manifest) -> None:
    rows = [_output_row(each, manifest.epoch not in log_state.unacked(each.sink)) for each in manifest.outputs.values()]
    rows += [_output_row(each, "with a later epoch") for each in manifest.held.values()]
    if rows:
        print_line()
        print_table(("sink", "rows", "files", "size", "published"), rows)


def _output_row(output: StagedOutput, published: object) -> tuple[object, ...]:
    total = size(sum(file.size_bytes for file in output.files))
    return (output.sink, output.rows, len(output.files), total, published)


def _print_identities(manifest: Manifest) -> None:
    rows = [("source", name, described(parts)) for name, parts in manifest.source_identities.items()]
    rows += [("sink", name, described(each.parts)) for name, each in manifest.sink_identities.items()]
    if rows:
        print_line()
        print_table(("", "name", "is"), rows)
