"""What to do about a decided epoch whose staged rows are damaged.

Nothing repairs them, and trying again changes nothing.  But their input can be read again: from the epoch before, which
every sink has, and whose state and cursors are whole.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_ckpt.errors import CkptError, EpochDamaged
from spark_ckpt.store.records import Manifest


def with_way_out(
    error: CkptError, sink: str, manifest: Manifest, published: Mapping[str, int], store: str
) -> CkptError:
    """The error of a sink that could not publish the epoch; if its rows are damaged, with what to run next.

    `published`: per sink the newest epoch it is known to have.
    """
    if not isinstance(error, EpochDamaged) or "expected" not in error.context:
        return error
    base = manifest.base
    others = {other: published.get(other, 0) for other in sorted({*manifest.outputs} - {sink})}
    repeated = [f"{other} has epoch {epoch}" for other, epoch in others.items() if epoch > base]
    lanes = error.context.pop("published_lanes", None)
    if lanes is not None:
        repeated.append(f"lanes {lanes} of {sink} have epoch {manifest.epoch}")
    context = {"sink": sink, **error.context, "would be repeated": "; ".join(repeated) or None}
    hint = (
        f"bring the file back from a backup and start again; or go back with job.start(restore={base}): what came after "
        f"epoch {base} is read from the sources again and published anew, nothing is lost while the sources still have "
        f"it (first see what would happen: spark-ckpt restore {store} {base} --dry-run)"
    )
    return EpochDamaged(error.what, hint=hint, **context)
