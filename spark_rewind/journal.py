"""Journal of rewinds: a hidden folder next to the first checkpoint of a plan, with one folder per plan."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from spark_ckpt.errors import CheckpointDamaged, ConfigInvalid, FormatUnknown, RewindUnderWay
from spark_ckpt.wording import complaint
from spark_rewind.durable import locked, remove_tree, replace, sync_folder, written
from spark_rewind.plan import FORMAT as PLAN_FORMAT
from spark_rewind.plan import RewindPlan
from spark_rewind.reading import text_of
from spark_rewind.records import FORMAT, RewindRecord
from spark_rewind.stages import Phase

FOLDER, PLAN = ".spark-ckpt-rewind", "plan.json"
_ID_LENGTH = 12


def read_plan(path: Path) -> RewindPlan:
    """Read a plan that was printed with `--json`. Raises `ConfigInvalid`, `FormatUnknown`, `CheckpointUnreadable`."""
    hint = "keep what `spark-ckpt rewind plan ... --json` prints, and give that file"
    try:
        plan = RewindPlan.model_validate_json(text_of(path))
    except FileNotFoundError:
        raise ConfigInvalid(f"there is no plan {path}", hint=hint) from None
    except ValidationError as error:
        raise ConfigInvalid(f"{path} is no plan: {complaint(error, 'it')}", hint=hint) from error
    if plan.format != PLAN_FORMAT:
        raise FormatUnknown(f"{path} is a plan of format {plan.format}", hint="apply it with the version that made it")
    return plan


class Journal:
    """The records of one plan."""

    def __init__(self, plan: RewindPlan) -> None:
        # the id is a digest of the plan: the same plan finds its record again after a crash
        self._plan = plan.model_dump_json().encode()
        self.id = hashlib.sha256(self._plan).hexdigest()[:_ID_LENGTH]
        # The smallest path, so that every call with this plan finds the same journal.
        first = min(Path(each.folder) for each in plan.queries)
        self.folder = first.parent / FOLDER / self.id

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the exclusive lock of the plan's folder. Raises `RewindUnderWay`, `RewindNotPermitted`."""
        with written(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        taken = RewindUnderWay(f"another process works on {self.folder}", hint="wait until it is over")
        with locked(self.folder / "lock", taken):
            yield

    def read(self, kind: str) -> RewindRecord | None:
        """Return the record of the rewind ("apply") or its undo ("undo"), None without one.

        Raises `CheckpointDamaged`, `FormatUnknown`.
        """
        path = self._path(kind)
        try:
            record = RewindRecord.model_validate_json(text_of(path))
        except FileNotFoundError:
            return None
        except ValidationError as error:
            hint = "restore it from a backup: it says how far the rewind is"
            raise CheckpointDamaged(f"{path} is no record of a rewind", hint=hint) from error
        if record.format != FORMAT:
            raise FormatUnknown(f"{path} is of format {record.format}", hint="continue with the version that began it")
        return record

    def keep_plan(self) -> None:
        """Keep a copy of the plan; it is durable when this returns. Raises `RewindNotPermitted`."""
        # Only this plan opens the fences: a user who has lost the file could start none of its queries.
        replace(self.folder / PLAN, self._plan)

    def phase(self, kind: str) -> Phase | None:
        """Return the phase of the rewind or its undo, None without a record."""
        record = self.read(kind)
        return None if record is None else record.phase

    def write(self, record: RewindRecord) -> RewindRecord:
        """Write a record; it is durable when this returns. Raises `RewindNotPermitted`."""
        replace(self._path(record.kind), record.model_dump_json(indent=1).encode())
        # both folders are new at the first write: a fence must never outlive the record that explains it
        sync_folder(self.folder.parent)
        sync_folder(self.folder.parent.parent)
        return record

    def forget(self, record: RewindRecord) -> None:
        """Delete a record of which nothing counts, and with that of a rewind the plan."""
        self._path(record.kind).unlink(missing_ok=True)
        # The plan of an undo stays: its rewind is done, and may be undone later.
        if record.kind == "apply":
            (self.folder / PLAN).unlink(missing_ok=True)

    def texts(self, record: RewindRecord) -> Path:
        """Return the folder with the prepared commits of a rewind's tables."""
        return self.folder / f"{record.kind}-tables"

    def text_path(self, record: RewindRecord, digest: str) -> Path:
        """Return the file of the prepared commit whose text has this SHA-256."""
        return self.texts(record) / f"{digest}.json"

    def rows(self, record: RewindRecord, outbox: int) -> Path:
        """Return the folder with the listed rows of one outbox. `outbox` is its index in the record."""
        return self.folder / f"{record.kind}-rows" / f"{outbox}"

    def remove_texts(self, record: RewindRecord) -> None:
        """Delete the prepared commits."""
        remove_tree(self.texts(record))

    def _path(self, kind: str) -> Path:
        return self.folder / f"{kind}.json"
