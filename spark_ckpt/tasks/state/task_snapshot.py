"""The snapshot of one task at a barrier: its key groups share a file.

Spark calls the key groups of a task one after another, in one Python process, and each gets the barrier. Every call adds
its rows. The last one makes the file durable and reports for all. If it fails, the task fails, and Spark keeps the state
of no group. So no state that counts names a file that is not durable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from spark_ckpt.connector import Json
from spark_ckpt.epochs.records import StateRange
from spark_ckpt.tasks.state.shared_file import SharedFile

if TYPE_CHECKING:
    from spark_ckpt.store.location import Location
    from spark_ckpt.tasks.state.group_state import Capture

Kind = Literal["full", "changes"]


@dataclass(slots=True)
class TaskSnapshot:
    """Snapshot of the key groups `groups` of an operator at the barrier of `epoch`.

    `location`: place of the operator's state. Full snapshots and changes are files of their own. Usually there is one.
    """

    location: Location
    incarnation: int
    epoch: int
    groups: frozenset[int]
    files: dict[Kind, SharedFile] = field(default_factory=dict)
    called: set[int] = field(default_factory=set)
    voted: list[int] = field(default_factory=list)

    def write(self, key_group: int, capture: Capture) -> tuple[str, StateRange]:
        """Add the rows of a key group; return the path of their file and their range of it."""
        if capture.kind not in self.files:
            task = min(self.groups)  # its number, see `GroupHost.task_of`
            self.files[capture.kind] = SharedFile(self.location, self.incarnation, self.epoch, task, capture.kind)
        file = self.files[capture.kind]
        return file.path, file.add(key_group, capture.table)

    def passed(self, key_group: int, votes: bool) -> None:
        """Record that a key group has passed the barrier, with its vote."""
        self.called.add(key_group)
        if votes:
            self.voted.append(key_group)

    @property
    def is_whole(self) -> bool:
        """True if every key group has passed the barrier."""
        return self.called >= self.groups

    def drop(self) -> None:
        """Forget the files of a failed attempt."""
        for file in self.files.values():
            file.drop()

    def finish(self) -> dict[str, Json]:
        """Make the files durable; return the report of the task about them. Raises a `StoreOutage`."""
        files = [file.finish().model_dump(mode="json") for file in self.files.values()]
        return {"epoch": self.epoch, "groups": sorted(self.voted), "files": files}


Attempt = tuple[int, str, int]
"""A task attempt at a barrier: Spark's id of the attempt, the location of the operator's state, the epoch."""
_open: dict[Attempt, TaskSnapshot] = {}
"""The snapshot that this process is in; a worker runs one task at a time."""


def snapshot_of(attempt: Attempt, begin: Callable[[], TaskSnapshot]) -> TaskSnapshot:
    """Return the open snapshot of a task attempt, which the first call begins.

    One of another attempt is dropped: it failed.
    """
    if attempt not in _open:
        # Spark runs one task of a worker at a time, so an open snapshot of another attempt belongs to a failed one.
        for failed in _open.values():
            failed.drop()
        _open.clear()
        _open[attempt] = begin()
    return _open[attempt]


def close(attempt: Attempt) -> None:
    """Forget a finished snapshot."""
    _open.pop(attempt, None)
