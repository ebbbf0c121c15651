"""Shows and sets a sink's marker in a Delta table. For operators.

    python -m spark_ckpt_delta.repair --table TABLE --store-id ID --sink SINK [--engine spark] show
    ... set 42       declare that epoch 42, and nothing after it, is in the table

A job refuses to start when the table has less than its log says: a backup or a lost commit removed rows. `set 42`
means: the job publishes the epoch after 42 next. It does not publish 42 and older ones again, whether their rows are
there or not. The command adds one commit without rows. Stop the job first.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from deltalake import CommitProperties, Transaction
from deltalake.exceptions import DeltaError

from checkpoint_protocols.ids import Epoch, Incarnation
from spark_ckpt.connector import SinkContext
from spark_ckpt.connector_parts.options_file import read_options
from spark_ckpt.errors import CkptError, PublishConflict, SinkInvalid
from spark_ckpt.storage_errors import one_line
from spark_ckpt_delta.log import open_table
from spark_ckpt_delta.marker import Engine, application_id, declared_version, read_marker


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    given = _parser().parse_args(arguments)
    # The names in the table's log depend on the store and the sink only.
    context = SinkContext("", given.sink, given.store_id, Incarnation(0))
    try:
        options = read_options(given.options_file)
        if given.verb == "set":
            declare(given.table, options, context, given.engine, Epoch(given.epoch))
        sys.stdout.write(show(given.table, options, context, given.engine) + "\n")
    except CkptError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def command(table: str, options: Mapping[str, str], context: SinkContext, engine: Engine, epoch: Epoch) -> str:
    """Return the command that declares `epoch`, as an operator types it."""
    names = ["--table", table, "--store-id", context.store_id, "--sink", context.sink, "--engine", engine]
    # By a file, since options hold secrets. Without the file the command says how to write it.
    names += ["--options-file", "STORAGE_OPTIONS.json"] if options else []
    return shlex.join(["python", "-m", "spark_ckpt_delta.repair", *names, "set", str(epoch)])


def show(table: str, options: Mapping[str, str], context: SinkContext, engine: Engine) -> str:
    """Return the marker as text. Raises `SinkInvalid`."""
    try:
        marker = read_marker(open_table(table, options), application_id(context, engine))
    except (DeltaError, OSError) as error:
        raise SinkInvalid(f"{table} cannot be opened: {one_line(error)}", table=table) from error
    return f"{table}: no marker" if marker is None else f"{table}: epoch {marker.epoch}"


def declare(table: str, options: Mapping[str, str], context: SinkContext, engine: Engine, epoch: Epoch) -> None:
    """Write a marker that says: `epoch` is published, later epochs are not.

    Raises `PublishConflict` if the table has a newer one, and `SinkInvalid` if it cannot be opened or takes no marker.
    """
    try:
        opened = open_table(table, options)
        application = application_id(context, engine)
        marker = read_marker(opened, application)
        if marker is not None and marker.epoch > epoch:
            raise PublishConflict(f"{table} has epoch {marker.epoch}: a marker never goes back", table=table)
        opened.create_write_transaction(
            [],
            mode="append",
            schema=opened.schema(),
            partition_by=list(opened.metadata().partition_columns),
            commit_properties=CommitProperties(
                custom_metadata={"userMetadata": f"spark-ckpt repair sink={context.sink} epoch={epoch}"},
                app_transactions=[Transaction(application, declared_version(epoch))],
                # A publish that commits in between would be hidden by the declared marker: the command fails instead
                # of rebasing on it.
                max_commit_retries=0,
            ),
        )
    except (DeltaError, OSError) as error:
        raise SinkInvalid(f"{table} takes no marker: {one_line(error)}", table=table) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m spark_ckpt_delta.repair",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--table", required=True, help="path or URI of the table")
    parser.add_argument("--store-id", required=True, help="as the job's refusal names it")
    parser.add_argument("--sink", required=True, help="the sink's name in the job")
    parser.add_argument("--engine", choices=("deltalake", "spark"), default="deltalake", help="the sink's engine")
    parser.add_argument("--options-file", type=Path, help="JSON object with deltalake's storage options")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("show")
    verbs.add_parser("set").add_argument("epoch", type=int)
    return parser


if __name__ == "__main__":
    sys.exit(main())
