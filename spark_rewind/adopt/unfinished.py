"""Decision about a batch that was begun and not committed. Pure rules.

Its sink may show all of its rows, a part or none. Spark would run it again with the same rows. A sink that knows the
query's batches (Delta's, the file sink) would skip a batch that it has. A job's sink has no such record. So the batch
is settled before the job continues.
"""

from __future__ import annotations

from typing import Literal

from spark_ckpt.errors import AdoptionRefused, ConfigInvalid

Answer = Literal["done", "again"]
"""Outcome for the batch. "done": the job continues after it; "again": the job begins with its rows."""

FINISH = "start the plain query once more, which finishes the batch first, stop it, and adopt then"


def settled(unfinished: int | None, told: Answer | None, shown: bool | None) -> Answer | None:
    """Return the outcome for batch `unfinished`, None without such a batch.

    `shown`: true if the output has the batch, None if no output was given; then the user's answer counts. Raises
    `AdoptionRefused` if neither is known, or both differ; `ConfigInvalid` for an answer without a batch.
    """
    if unfinished is None:
        if told is not None:
            raise ConfigInvalid(
                f"--unfinished {told}: every batch of the query is committed",
                hint="leave the option out: it would answer for a batch that comes later",
            )
        return None
    if shown is None:
        return told or _refuse(unfinished)
    known: Answer = "done" if shown else "again"
    if told is not None and told != known:
        raise AdoptionRefused(
            f"--unfinished {told}: the output {'has' if shown else 'does not have'} batch {unfinished}",
            hint=f"leave --unfinished out: the output says {known}",
        )
    return known


def _refuse(unfinished: int) -> Answer:
    raise AdoptionRefused(
        f"batch {unfinished} was begun and not committed: the sink may have some of its rows",
        done="the job continues after the batch; correct if the sink has all of its rows, else these rows are lost",
        again="the job begins with the batch's rows; right if the sink shows none of them, else they come twice",
        hint=f"{FINISH}; or name the query's output, a Delta table or a file sink's folder: --output DIR; "
        f"or look at the sink, and pass --unfinished done or --unfinished again",
    )
