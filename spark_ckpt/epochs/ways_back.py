"""Recovery advice: the newest epoch that a job can restore if one epoch can be neither published nor built on.

Staged rows of a committed epoch may be damaged, or a sink may refuse them. A retry changes nothing. But their input can
be read again from an earlier epoch, which every sink has. The error of such a publish says so.

It does no I/O of its own.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.epochs.restore import (
    Choice,
    Read,
    RestoreTarget,
    Verify,
    choose,
    newest_whole,
    no_check,
    whole_epochs,
    would_be_repeated,
)
from spark_ckpt.errors import CkptError, EpochDamaged, IdentityChanged, PublishConflict, RowsRefused


def choice_unseen(log_state: LogState, target: RestoreTarget, read: Read, verify: Verify) -> Choice:
    """Return the epoch that `target` means, by the log alone.

    Files are read only for an epoch that an error recommends.

    Raises as `choose`.
    """
    return choose(log_state, target, read, no_check, whole=verify)


def whole_manifests(log_state: LogState, newest: int, read: Read, verify: Verify) -> Iterator[Manifest]:
    """Yield the restorable epochs of the branch of `newest`, newest first.

    Files are verified when an epoch is requested.
    """
    return (each.base for each in whole_epochs(log_state, newest, read, verify))


def way_back(
    error: CkptError | None, sink: str, epoch: int, log_state: Callable[[], LogState], read: Read, verify: Verify
) -> int | None:
    """Return the epoch to restore if rows of `epoch` are damaged or refused, or if a marker or another endpoint
    blocks it.

    It is the latest restorable one before `epoch` that neither has to publish nor defers a damaged file; 0 means that
    the job starts over.

    - `error`: the error of the publish. For errors of another kind the result is None.
    - `log_state`: function that returns the current state of the log.

    Raises the errors of reading the log.
    """
    if isinstance(error, IdentityChanged) or (isinstance(error, PublishConflict) and error.marker is not None):
        # Another endpoint, or a marker, blocks the whole sink, so no file is at fault.
        paths = frozenset[str]()
    elif isinstance(error, RowsRefused):
        files = _staged(read, sink, epoch)
        # If the error names no file of this epoch, avoid all of its files.
        paths = files & {str(error.context.get("file", ""))} or files
    elif isinstance(error, EpochDamaged) and error.damaged_file:
        files = _staged(read, sink, epoch)
        paths = files & {error.damaged_file} or files
    else:
        return None
    return newest_whole(log_state(), epoch, read, verify, paths)


def _staged(read: Read, sink: str, epoch: int) -> frozenset[str]:
    output = read(epoch).outputs.get(sink)
    return frozenset(file.path for file in output.files) if output else frozenset()


# -- the advice in the error of a failed publish -------------------------------------------------------------------------


def with_recovery_advice(
    error: CkptError,
    sink: str,
    manifest: Manifest,
    published: Mapping[str, int],
    store: str,
    back: int | None = None,
    unanswered: Mapping[str, int] | None = None,
) -> CkptError:
    """Return the error of a failed publish, with recovery advice if the epoch's rows are damaged or refused, or if the
    sink is another one.

    `published`: per sink, the newest epoch that it is known to have. `store`: URI of the store. `back`: the epoch to
    restore, from `epochs.ways_back`; None if the log could not be read. `unanswered`: per sink, the newest committed
    epoch that it may have as well.
    """
    store = shlex.quote(store)
    base = manifest.base if back is None else back  # without the log: the epoch before, unchecked
    lasting = isinstance(error, RowsRefused | IdentityChanged)
    if not lasting and not (isinstance(error, EpochDamaged) and error.damaged_file):
        return error
    unanswered = unanswered or {}
    others = sorted({*manifest.outputs, *published, *unanswered} - {sink})
    told = would_be_repeated(others, published, unanswered, base)
    lanes = error.context.pop("published_lanes", None)
    if lanes is not None:
        told.append(f"lanes {lanes} of {sink} have epoch {manifest.epoch}")
    context = {"sink": sink, **error.context, "would be repeated": "; ".join(told) or None}
    if isinstance(error, RowsRefused):
        return _until_they_fit(error, sink, base, store, {**context, "epoch": manifest.epoch})
    if isinstance(error, IdentityChanged):
        return _into_the_new(error, sink, base, store, {**context, "epoch": manifest.epoch})
    hint = (
        f"bring the file back from a backup and start again; or go back with job.start(restore={base}): what came after "
        f"epoch {base} is read from the sources again and published again, nothing is lost while the sources still have "
        f"it (first see what would happen: spark-ckpt restore {store} {base})"
    )
    return EpochDamaged(error.what, hint=hint, **context)


def _until_they_fit(error: RowsRefused, sink: str, base: int, store: str, context: Mapping[str, Any]) -> RowsRefused:
    hint = (
        f"{error.hint}; or start a job whose rows fit with job.start(restore={base}): it reads the rows after epoch {base} "
        f"from the sources again (first see what it would do: spark-ckpt restore {store} {base}); or give sink "
        f"'{sink}' another table or topic, with job.start(restore={base}, accept_new_sink='{sink}')"
    )
    return RowsRefused(error.what, hint=hint, **{**context, "restore": base})


def _into_the_new(
    error: IdentityChanged, sink: str, base: int, store: str, context: Mapping[str, Any]
) -> IdentityChanged:
    hint = (
        f"{error.hint}; for the new one, start with job.start(restore={base}, accept_new_sink='{sink}'), which reads the rows "
        f"after epoch {base} from the sources again, for every sink (first see what it would do: "
        f"spark-ckpt restore {store} {base})"
    )
    return IdentityChanged(error.what, hint=hint, **{**context, "restore": base})


def past_the_marker(error: CkptError, sink: str, diverged: Collection[int], back: int | None) -> CkptError:
    """Return the error of a sink whose marker names a diverged epoch, with recovery advice; other errors unchanged.

    `diverged`: epochs that do not descend from the one to publish. `back`: the epoch to restore, from
    `epochs.ways_back`; None if the log could not be read.
    """
    marker = error.marker if isinstance(error, PublishConflict) else None
    if back is None or marker is None or marker not in diverged:
        return error
    hint = f"continue with job.start(restore={back}): no rows are lost, but those that {sink} has of epoch {marker} come again"
    context = {**error.context, "would be repeated": f"{sink} has epoch {marker}"}
    return PublishConflict(error.what, hint=hint, **context)


def with_publish_advice(
    error: CkptError,
    sink: str,
    epoch: int,
    diverged: Collection[int],
    log_state: Callable[[], LogState],
    read: Read,
    verify: Verify,
    store: str,
) -> CkptError:
    """Return the error of a failed publish, with all the advice above. For a host that reads the log by itself.

    Parameters as in `way_back`, `past_the_marker` and `with_recovery_advice`. Raises the errors of reading the log.
    """
    manifest, now = read(epoch), log_state()
    back = way_back(error, sink, epoch, log_state, read, verify)
    unanswered = {each: max(epochs) for each in now.sinks if (epochs := now.unsettled(each))}
    told = past_the_marker(error, sink, diverged, back)
    return with_recovery_advice(told, sink, manifest, now.acked, store, back, unanswered)
