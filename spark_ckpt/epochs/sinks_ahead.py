"""Detection of sinks that are ahead of the log: the log lost its end, or is a backup. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from spark_ckpt.connector import PublishedEpoch
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.errors import PublishConflict


def beyond(published: PublishedEpoch, log_state: LogState) -> str:
    """Return a sentence about epochs that the sink has and the log does not know; empty if there are none."""
    if published.epoch > log_state.last:
        return f"it has epoch {published.epoch}, the log's newest is {log_state.last}"
    # A log that assigned this number again would pass the sink's fence as the old publisher.
    if published.incarnation > log_state.incarnation:
        return f"incarnation {published.incarnation} published to it, the log's newest is {log_state.incarnation}"
    known = log_state.by_id.get(published.epoch)
    # A log from a backup assigns the numbers after it again. Only the random id of the commit tells the two epochs
    # apart.
    if known is not None and not published.is_of(known.attempt):
        return (
            f"it has another epoch {published.epoch} than the log, which has lost that one and given its number again"
        )
    return ""


def refusal(markers: Mapping[str, PublishedEpoch], log_state: LogState, store: str) -> PublishConflict | None:
    """Return one error for all sinks that are ahead of the log; None if there are none.

    Its command accepts the loss for all.

    - `markers`: per sink its marker, the newest epoch that it has.
    - `store`: location of the store, for the command.
    """
    ahead = {name: why for name, published in markers.items() if (why := beyond(published, log_state))}
    if not ahead:
        return None
    # One command covers all sinks, so it names the highest numbers.
    epoch, incarnation = (max(getattr(markers[name], of) for name in ahead) for of in ("epoch", "incarnation"))
    # The log has these numbers, so that the command changes nothing for such a sink.
    again = [
        name
        for name in ahead
        if markers[name].epoch <= log_state.last and markers[name].incarnation <= log_state.incarnation
    ]
    confirmed = again[0] if len(again) == 1 else again
    replaced = (
        f" ({', '.join(again)}, with another epoch of a number that the log has given again, needs another table or topic, which "
        f"the start confirms with accept_new_sink={confirmed!r})"
    )
    return PublishConflict(
        "; ".join(f"sink {name} is ahead of the store: {why}" for name, why in ahead.items()),
        sink=", ".join(ahead),
        store=store,
        # The command ends the advice, so that it can be taken as it is.
        hint="the store is from an older backup, or has lost its newest epochs: bring them back from a newer backup. If "
        "they are lost for good, take the sinks back to the store's newest epoch, because the job produces the rows after "
        f"it again{replaced if again else ''}, and run: "
        f"spark-ckpt accept-loss {shlex.quote(store)} --epoch {epoch} --incarnation {incarnation}",
    )
