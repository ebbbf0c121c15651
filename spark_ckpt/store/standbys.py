"""The standbys of a job: each keeps a small file in the store, written by itself only.

These files decide nothing: the log alone decides about a takeover. They inform people and the `handover` command.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, ValidationError

from spark_ckpt.epochs.names import valid_name
from spark_ckpt.epochs.records import Count, Holder
from spark_ckpt.errors import CkptError, StoreOutage
from spark_ckpt.store.holder import provably_dead
from spark_ckpt.store.location import Location

_FOLDER = "standbys"
_ENDING = ".json"
_SILENT_S = 600.0


class StandbyNote(BaseModel):
    """Status of a standby.

    Times are of its own wall clock, in ms since 1970 UTC: for display, never compared between hosts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = 1
    holder: Holder
    waits_since_ms: int
    told_ms: int
    lease_of: Count = 0
    """Incarnation that it waits to replace."""
    epoch: Count = 0
    """Newest epoch that it has followed; 0 for none."""
    renewals: Count = 0
    """Number of renewals of the lease that it has seen."""
    warm: bool = False
    """True once the job's own plan has run here."""
    clock_ms: Count | None = None
    """Its own clock, without a date, if it takes the checkpoint lease (`checkpoint_protocols.lease.delegation`)."""
    health: Count = 100
    """Share of the maintenance that it may get, in percent."""


class Standbys:
    """The standbys of the store at `location`."""

    def __init__(self, location: Location) -> None:
        self._location = location.child(_FOLDER)
        self._seen: dict[str, tuple[int, float]] = {}

    def write(self, name: str, note: StandbyNote) -> None:
        """Create or replace the note of the standby `name`. Raises a `StoreOutage`."""
        self._location.write_bytes(_file(name), note.model_dump_json().encode())

    def withdraw(self, name: str) -> None:
        """Delete the note of the standby `name`: it waits no more."""
        self._location.delete([_file(name)])

    def waiting(self) -> list[StandbyNote]:
        """Return the notes of standbys that may be waiting, longest first by their own clocks: all but the provably
        dead. Raises a `StoreOutage`.
        """
        return sorted(self.named().values(), key=lambda note: (note.waits_since_ms, str(note.holder)))

    def named(self) -> dict[str, StandbyNote]:
        """Return the same notes by name. Raises a `StoreOutage`."""
        return {path.removesuffix(_ENDING): note for path, note in self._notes() if not provably_dead(note.holder)}

    def forget_dead(self) -> None:
        """Delete the notes of standbys that died on this host."""
        self._location.delete([path for path, note in self._notes() if provably_dead(note.holder)])

    def forget_silent(self, now_s: float) -> None:
        """Delete notes that this object has seen unchanged for 600 s, by the caller's clock `now_s`: their standbys
        died elsewhere.

        A living standby rewrites its note more often.
        """
        # Compare notes with their earlier versions: the clocks of two hosts cannot be compared.
        written = {path: note.told_ms for path, note in self._notes()}
        self._seen = {
            # An unchanged note keeps the time at which this object saw it first.
            path: self._seen[path] if self._seen.get(path, (None,))[0] == told_ms else (told_ms, now_s)
            for path, told_ms in written.items()
        }
        self._location.delete([path for path, (_, since_s) in self._seen.items() if now_s - since_s > _SILENT_S])

    def _notes(self) -> Sequence[tuple[str, StandbyNote]]:
        found = [(info.path, self._read(info.path)) for info in self._location.list() if info.path.endswith(_ENDING)]
        return [(path, note) for path, note in found if note is not None]

    def _read(self, path: str) -> StandbyNote | None:
        """Return the note; None if it is gone or was written by another version. Raises a `StoreOutage`."""
        try:
            return StandbyNote.model_validate_json(self._location.read_bytes(path))
        # The note of a standby that may wait: a handover must not be refused for it.
        except StoreOutage:
            raise
        except (FileNotFoundError, ValidationError, CkptError):
            return None


def _file(name: str) -> str:
    return f"{valid_name('standby', name)}{_ENDING}"
