"""Recovery advice for a committed epoch that cannot be published: its staged rows are damaged, or a sink refuses
them.

Nothing repairs such rows, and a retry changes nothing. But their input can be read again from an earlier epoch. Every
sink has that epoch, and its state and cursors are intact.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from spark_ckpt.epochs.records import Manifest
from spark_ckpt.errors import CkptError, EpochDamaged, PublishConflict, RowsRefused


def with_way_out(
    error: CkptError,
    sink: str,
    manifest: Manifest,
    published: Mapping[str, int],
    store: str,
    back: int | None = None,
    unanswered: Mapping[str, int] | None = None,
) -> CkptError:
    """Return the error of a failed publish, with recovery advice if the epoch's rows are damaged or refused.

    `published`: per sink, the newest epoch that it is known to have. `store`: URI of the store. `back`: the epoch to
    restore, from `epochs.ways_back`; None if the log could not be read. `unanswered`: per sink, the newest committed
    epoch that it may have as well.
    """
    base = manifest.base if back is None else back
    if not isinstance(error, RowsRefused) and not (isinstance(error, EpochDamaged) and error.damaged_file):
        return error
    told = _repeated(sink, manifest, published, unanswered or {}, base)
    lanes = error.context.pop("published_lanes", None)
    if lanes is not None:
        told.append(f"lanes {lanes} of {sink} have epoch {manifest.epoch}")
    context = {"sink": sink, **error.context, "would be repeated": "; ".join(told) or None}
    if isinstance(error, RowsRefused):
        return _until_they_fit(error, sink, base, store, {**context, "epoch": manifest.epoch})
    hint = (
        f"bring the file back from a backup and start again; or go back with job.start(restore={base}): what came after "
        f"epoch {base} is read from the sources again and published anew, nothing is lost while the sources still have "
        f"it (first see what would happen: spark-ckpt restore {store} {base} --dry-run)"
    )
    return EpochDamaged(error.what, hint=hint, **context)


def _until_they_fit(error: RowsRefused, sink: str, base: int, store: str, context: Mapping[str, Any]) -> RowsRefused:
    hint = (
        f"{error.hint}; or start a job whose rows fit with job.start(restore={base}): it reads the rows after epoch {base} "
        f"from the sources again (first see what it would do: spark-ckpt restore {store} {base} --dry-run); or give sink "
        f"'{sink}' another table or topic, with job.start(restore={base}, accept_new_sink='{sink}')"
    )
    return RowsRefused(error.what, hint=hint, **{**context, "restore": base})


@dataclass(frozen=True, slots=True)
class Branches:
    """Epochs outside of this incarnation's lineage.

    `on`: the newest epoch of the lineage that a restore can name; None if the log could not be read. `shown`: the
    newest epoch that another sink has or may have.
    """

    on: int | None
    passed_over: Collection[int] = ()
    """Damaged epochs that "latest" skipped."""
    beside: Collection[int] = ()
    """Diverged epochs: they do not descend from the one to publish."""
    behind: Collection[int] = ()
    """Possible descendants of a skipped epoch."""
    shown: int = 0


def past_the_marker(error: CkptError, sink: str, branches: Branches, store: str, back: int | None) -> CkptError:
    """Return the error of a sink whose marker names a diverged epoch, with recovery advice; other errors unchanged.

    `store`: URI of the store. `back`: the epoch to restore, from `epochs.ways_back`; None if the log could not be
    read.
    """
    marker = error.marker if isinstance(error, PublishConflict) else None
    if marker is None or marker not in {*branches.passed_over, *branches.beside, *branches.behind}:
        return error
    passed_over = marker in branches.passed_over
    to = back if marker in branches.beside else branches.on
    if to is None:
        return error
    hint = (
        f"go on with job.start(restore={to}): no rows are lost, but those that {sink} has of epoch {marker} come again"
    )
    # Repairing the skipped epoch repeats no rows, unless another sink already has a later one.
    if passed_over and branches.shown <= marker:
        hint = (
            f"epoch {marker} was passed over because it was damaged: bring back what it lacks (spark-ckpt verify {store}) and go "
            f"on from it with job.start(restore={marker}); or {hint}"
        )
    context = {**error.context, "would be repeated": f"{sink} has epoch {marker}"}
    return PublishConflict(error.what, hint=hint, **context)


def _repeated(
    sink: str, manifest: Manifest, published: Mapping[str, int], unanswered: Mapping[str, int], base: int
) -> list[str]:
    told = []
    for other in sorted({*manifest.outputs, *published, *unanswered} - {sink}):
        has, may_have = published.get(other, 0), unanswered.get(other, 0)
        if has > base:
            told.append(f"{other} has epoch {has}")
        if may_have > max(has, base):
            told.append(f"{other} may have epoch {may_have}")
    return told
