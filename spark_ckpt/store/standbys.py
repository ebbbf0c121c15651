"""Who waits behind a job's driver: a small file of each standby in the store, written by it alone.

Nothing is decided by these files: who may take over is the log's to say. They tell people and the `handover` command who there is.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, ValidationError

from spark_ckpt.errors import CkptError
from spark_ckpt.store.holder import provably_dead
from spark_ckpt.store.location import Location
from spark_ckpt.store.names import valid_name
from spark_ckpt.store.records import Count, Holder

_FOLDER = "standbys"
_ENDING = ".json"
_SILENT_S = 600.0


class StandbyNote(BaseModel):
    """What a standby tells. Times are its own wall clock's, in ms since 1970 UTC: to be shown, never compared with another host's.

    `lease_of`: the incarnation behind which it waits. `epoch`: the newest one that it has followed, 0 for none. `renewals`: how
    often it has seen the lease renewed. `warm`: the job's own plan has run here once. `clock_ms`: its own clock of no
    date, if it takes the checkpoint lease (`coordination.upkeep`); `health` in percent: how much of the upkeep it may get.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = 1
    holder: Holder
    waits_since_ms: int
    told_ms: int
    lease_of: Count = 0
    epoch: Count = 0
    renewals: Count = 0
    warm: bool = False
    clock_ms: Count | None = None
    health: Count = 100


class Standbys:
    """The standbys of the store at `location`."""

    def __init__(self, location: Location) -> None:
        self._location = location.child(_FOLDER)
        self._seen: dict[str, tuple[int, float]] = {}

    def write(self, name: str, note: StandbyNote) -> None:
        """Write, or write anew, what the standby `name` tells. Raises a `StoreOutage`."""
        self._location.write_bytes(_file(name), note.model_dump_json().encode())

    def withdraw(self, name: str) -> None:
        """`name` waits no more."""
        self._location.delete([_file(name)])

    def waiting(self) -> list[StandbyNote]:
        """Those that may be waiting, longest first by their own clocks: all but the provably dead."""
        notes = [note for _, note in self._notes() if not provably_dead(note.holder)]
        return sorted(notes, key=lambda note: (note.waits_since_ms, str(note.holder)))

    def named(self) -> dict[str, StandbyNote]:
        """The same by name. Raises a `StoreOutage`."""
        return {path.removesuffix(_ENDING): note for path, note in self._notes() if not provably_dead(note.holder)}

    def forget_dead(self) -> None:
        """Remove what standbys left here that died on this host."""
        self._location.delete([path for path, note in self._notes() if provably_dead(note.holder)])

    def forget_silent(self, now_s: float) -> None:
        """Remove notes that this object has seen unchanged for long, by the caller's clock: somebody died elsewhere. Who lives
        writes his anew."""
        written = {path: note.told_ms for path, note in self._notes()}
        self._seen = {
            path: self._seen[path] if self._seen.get(path, (None,))[0] == told_ms else (told_ms, now_s)
            for path, told_ms in written.items()
        }
        self._location.delete([path for path, (_, since_s) in self._seen.items() if now_s - since_s > _SILENT_S])

    def _notes(self) -> Sequence[tuple[str, StandbyNote]]:
        found = [(info.path, self._read(info.path)) for info in self._location.list() if info.path.endswith(_ENDING)]
        return [(path, note) for path, note in found if note is not None]

    def _read(self, path: str) -> StandbyNote | None:
        """None for what is gone meanwhile, or was written by another version: it is told to nobody."""
        try:
            return StandbyNote.model_validate_json(self._location.read_bytes(path))
        except (FileNotFoundError, ValidationError, CkptError):
            return None


def _file(name: str) -> str:
    return f"{valid_name('standby', name)}{_ENDING}"
