"""What to do about a decided epoch whose staged rows are damaged.

Nothing repairs them, and trying again changes nothing.  But their input can be read again: from an epoch before, which
every sink has, and whose state and cursors are whole.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_ckpt.errors import CkptError, EpochDamaged
from spark_ckpt.store.records import Manifest


def with_way_out(
    error: CkptError,
    sink: str,
    manifest: Manifest,
    published: Mapping[str, int],
    store: str,
    back: int | None = None,
    unanswered: Mapping[str, int] | None = None,
) -> CkptError:
    """The error of a sink that could not publish the epoch; if its rows are damaged, with what to run next.

    `published`: per sink the newest epoch it is known to have. `unanswered`: the newest decided epoch that it may have, too.
    `back`: what `store.ways_back` says; None if the log could not be asked.
    """
    if not isinstance(error, EpochDamaged) or not error.is_of_a_file:
        return error
    base = manifest.base if back is None else back
    told = _repeated(sink, manifest, published, unanswered or {}, base)
    lanes = error.context.pop("published_lanes", None)
    if lanes is not None:
        told.append(f"lanes {lanes} of {sink} have epoch {manifest.epoch}")
    context = {"sink": sink, **error.context, "would be repeated": "; ".join(told) or None}
    hint = (
        f"bring the file back from a backup and start again; or go back with job.start(restore={base}): what came after "
        f"epoch {base} is read from the sources again and published anew, nothing is lost while the sources still have "
        f"it (first see what would happen: spark-ckpt restore {store} {base} --dry-run)"
    )
    return EpochDamaged(error.what, hint=hint, **context)


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
