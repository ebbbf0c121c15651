"""Detection of sinks that lack rows that they have acknowledged, e.g. a table restored from an older backup. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from spark_ckpt.connector import PublishedEpoch
from spark_ckpt.epochs.identity import Confirmed
from spark_ckpt.epochs.log_state import LogState, taken_back
from spark_ckpt.epochs.records import Manifest, SinkIdentity
from spark_ckpt.epochs.restore import Choice, Read, Verify, whole_epochs
from spark_ckpt.errors import UNREADABLE, PublishConflict
from spark_ckpt.wording import epochs

Markers = Mapping[str, PublishedEpoch | None]
"""Newest epoch of each sink that was read; None if it has none."""

Declaring = Callable[[str, int], str]
"""Function that returns the command by which an operator declares that a sink has everything up to an epoch.

Empty if the sink has no such command.
"""


@dataclass(frozen=True, slots=True)
class Behind:
    """A sink that lacks rows.

    - `has`: its newest epoch, 0 if it has none.
    - `published`: the newest epoch with rows that it should have.
    """

    sink: str
    has: int
    published: int

    @property
    def sentence(self) -> str:
        """Description for a message."""
        has = f"its newest is epoch {self.has}" if self.has else "it has no epoch"
        return f"sink {self.sink} is behind the store: it has published epoch {self.published}, but {has}"


def endpoints_now(log_state: LogState, read: Read) -> Mapping[str, SinkIdentity]:
    """Return the endpoint of each sink, as the newest readable epoch of any branch has it."""
    # A restore takes no sink back to the endpoint of an older epoch.
    for brief in reversed(log_state.epochs):
        with suppress(*UNREADABLE):
            return read(brief.epoch).sink_identities
    return {}


def lacking_after(found: Iterable[Behind], log_state: LogState, read: Read) -> dict[str, int]:
    """Return per sink the epoch after which it lacks rows: its newest one, or the last before it replaced another endpoint."""
    # If it has acknowledged no more than it has, the log counts nothing as published that it lacks.
    late = _complete_until(found, log_state, read)
    return {sink: epoch for sink, epoch in late.items() if epoch < log_state.acked.get(sink, 0)}


def _complete_until(found: Iterable[Behind], log_state: LogState, read: Read) -> dict[str, int]:
    late = list(found)
    now = endpoints_now(log_state, read) if late else {}  # a start without a late sink reads no manifest for it
    # Epochs before a replacement are no rows of this endpoint. Counted as lost, they would be due to it, and no start could
    # publish them.
    return {each.sink: max(each.has, now[each.sink].after if each.sink in now else 0) for each in late}


def rows_published(log_state: LogState, newest: Manifest, read: Read) -> dict[str, int]:
    """Return per sink the newest epoch with rows, on the branch of `newest`, that the sink has acknowledged.

    A sink that replaced another endpoint may lack the epochs before.
    """
    now = endpoints_now(log_state, read)
    found = {sink: _newest_published(log_state, newest, sink, read, now.get(sink)) for sink in newest.rows_so_far}
    return {sink: epoch for sink, epoch in found.items() if epoch}


def _newest_published(
    log_state: LogState, newest: Manifest, sink: str, read: Read, identity: SinkIdentity | None
) -> int:
    epoch, unpublished = newest.rows_so_far[sink], log_state.unpublished.get(sink, frozenset[int]())
    try:
        # Unpublished epochs prove nothing. Go back to the newest one with rows that the sink has acknowledged.
        while epoch in unpublished:
            epoch = read(epoch).rows_before.get(sink, 0)
    except UNREADABLE:
        return 0  # unknown; a start refuses the damaged epoch, or skips it
    # The acknowledgement may be of the endpoint before the present one, which never had these rows.
    return 0 if identity is not None and epoch <= identity.after else epoch


def behind(markers: Markers, published: Mapping[str, int]) -> list[Behind]:
    """Return the sinks that have less than they have published, by name."""
    has = {sink: marker.epoch if marker else 0 for sink, marker in markers.items()}
    # A sink whose marker was not read counts as complete.
    return [Behind(sink, has[sink], epoch) for sink, epoch in sorted(published.items()) if has.get(sink, epoch) < epoch]


def refusal(
    found: list[Behind],
    log_state: LogState,
    read: Read,
    verify: Verify,
    declaring: Declaring,
    confirmed: Confirmed,
) -> PublishConflict | None:
    """Return the error for a job that cannot continue with these sinks, with recovery advice; None if there are none.

    `confirmed`: by the start that is refused. Advice without it leads to the refusal that asked for it, and back here.
    """
    if not found:
        return None
    # The advice has to hold after the operator has followed it: then the missing epochs are unpublished, and their rows
    # are needed.
    late = _complete_until(found, log_state, read)
    without = taken_back(log_state, lacking_after(found, log_state, read))
    choices = whole_epochs(without, log_state.latest, read, verify)
    to = next((each.base.epoch for each in choices if not _lacks_dropped(each, late)), 0)
    newest = {each.sink: log_state.acked.get(each.sink, each.published) for each in found}
    commands = [command for sink, epoch in newest.items() if (command := declaring(sink, epoch))]
    ways = ["bring back what the sink had: a newer backup, or its newest commits"]
    if commands:
        said = "; ".join(commands) + _unanswered(log_state, found)
        ways.append(
            f"if the rows are there and only the marker is lost, or you accept that they are missing, say so: {said}"
        )
    ways.append(f"if the rows are gone: {_again(log_state, to, confirmed)}")
    return PublishConflict(
        "; ".join(each.sentence for each in found),
        sink=", ".join(each.sink for each in found),
        hint="; or ".join(ways),
        restore=to,
    )


def _lacks_dropped(choice: Choice, late: Mapping[str, int]) -> bool:
    """Return True if a sink lacks rows up to this epoch that retention has dropped: no start could publish those after them."""
    due = choice.unpublished
    before = {sink: due[sink][0].rows_before if sink in due else choice.base.rows_so_far for sink in late}
    return any(before[sink].get(sink, 0) > epoch for sink, epoch in late.items())


def _unanswered(log_state: LogState, found: list[Behind]) -> str:
    """Return a remark about epochs that a sink may have without an acknowledgement. Their rows must not come twice."""
    maybe = {each.sink: log_state.unsettled(each.sink) for each in found}
    said = [f"{epochs(numbers)} of {sink}" for sink, numbers in maybe.items() if numbers]
    return (
        f" (not acknowledged: {', '.join(said)}; if their rows are there, declare the newest of them)" if said else ""
    )


def _again(log_state: LogState, to: int, confirmed: Confirmed) -> str:
    if to and to == log_state.latest:
        return f"{confirmed.call(to)} publishes the missing epochs again: their rows are still staged"
    return (
        f"{confirmed.call(to)} reads the rows after epoch {to} from the sources again and publishes them: what sinks have of "
        "later epochs they get twice"
    )
