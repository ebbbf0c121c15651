"""Fences: files in a checkpoint's logs that stop its query.

A fence occupies the file name of the next batch in `offsets`, and in `commits` that of an unfinished batch.

- A running query finds the name taken and stops (Spark: "Multiple streaming queries are concurrently using").
- A starting query reads the newest file, finds no version in its first line, and stops with its text.

Neither query processes a row before it stops.
"""

from __future__ import annotations

from pathlib import Path

from spark_ckpt.errors import RewindQueryRuns
from spark_ckpt.spark_internals.query_logs import COMMITS, FENCE, OFFSETS
from spark_rewind.checkpoint import QueryCheckpoint
from spark_rewind.durable import part_of, sync_folder, write_new, written
from spark_rewind.journal import FOLDER, PLAN
from spark_rewind.reading import text_of
from spark_rewind.records import UNDO


def fence_paths(query: QueryCheckpoint, folder: Path) -> list[Path]:
    """Return the fence files of a checkpoint with these batches in `folder`."""
    newest = query.batches[-1].number if query.batches else -1
    found = [folder / OFFSETS / str(newest + 1)]
    # A query that still runs ends this batch before it asks for the next: the name in `commits` must be taken, too.
    if query.unfinished is not None:
        found.append(folder / COMMITS / str(query.unfinished.number))
    return found


def fence_text(identity: str) -> str:
    """Return a fence's text. Spark shows it to the user who starts the query."""
    rewind = identity.removesuffix(UNDO)
    verb = "apply" if rewind == identity else "undo"
    return (
        f"{FENCE}{identity}: a rewind rolls this query back. Run `spark-ckpt rewind {verb}` with its plan again, then start it. "
        f"A copy of the plan is {FOLDER}/{rewind}/{PLAN} next to a checkpoint.\n"
    )


def put_fences(paths: list[Path], identity: str) -> None:
    """Write fences. Fences of the same rewind may exist. Raises `RewindQueryRuns` if a batch took a name first."""
    for path in paths:
        try:
            path.parent.mkdir(exist_ok=True)
            write_new(path, fence_text(identity).encode())
        # Spark creates the file of a batch only if its name is free, and so does this: one of both fails.
        except FileExistsError:
            if not is_fence(path, identity):
                what = f"{path} was written just now: the query is running"
                raise RewindQueryRuns(what, hint="stop the query, plan again, and apply that plan") from None


def remove_fences(paths: list[Path], identity: str) -> None:
    """Remove complete and partial fences of this rewind. Other files with these names stay."""
    for path in paths:
        with written(path):
            # a crash while a fence was written leaves its temporary file
            part_of(path).unlink(missing_ok=True)
        if is_fence(path, identity):
            with written(path):
                path.unlink()
                sync_folder(path.parent)


def is_fence(path: Path, identity: str) -> bool:
    """Return true for a file that is a fence of this rewind."""
    try:
        return text_of(path).startswith(f"{FENCE}{identity}:")
    except FileNotFoundError:
        return False
