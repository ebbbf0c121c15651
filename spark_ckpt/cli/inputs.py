"""The files that a restore reads again from sources which list their input in the store; some may be gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spark_ckpt.cli.memory_check import FOLDER, check_memory
from spark_ckpt.connector import Cursor, Json
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.recovery import RestorePlan
from spark_ckpt.errors import CkptError
from spark_ckpt.store.store import Store
from spark_ckpt.wording import counted, epochs

_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class InputAgain:
    """Files of one source that a restore reads again, and the missing ones among them; null if unknown.

    `uncounted`: the newest epochs, if their manifests cannot be read. They may have read more files.
    """

    source: str
    files: int | None
    missing: tuple[str, ...] | None
    sentence: str
    error: CkptError | None = None
    """Reason why it is unknown."""
    uncounted: tuple[int, ...] = ()

    def fields(self) -> dict[str, Json]:
        """Return the fields for JSON."""
        missing: Json = None if self.missing is None else list(self.missing)
        error = None if self.error is None else str(self.error)
        return {
            "source": self.source, "files": self.files, "missing": missing, "sentence": self.sentence, "error": error,
            "uncounted": list(self.uncounted),
        }  # fmt: skip


def inputs_again(store: Store, log_state: LogState, planned: RestorePlan) -> list[InputAgain]:
    """Return the files that the plan's epoch reads again, by source. Sources that do not list files are left out."""
    # With a damaged list the files that are read again cannot be counted: the damage alone is the answer for that source.
    damaged = _damaged(store, planned)
    return [*damaged, *(each for each in _all_again(store, log_state, planned) if each.source not in _names(damaged))]


def _damaged(store: Store, planned: RestorePlan) -> list[InputAgain]:
    """Return the sources whose files in the store are damaged: the job would not start."""
    if not planned.epoch:
        return []
    found = check_memory(store, [store.log.manifest(planned.epoch)]).damage.get(planned.epoch, {})
    says = "the job does not start from this epoch: "
    return [InputAgain(name, None, None, f"{says}{error.what}", error) for name, error in sorted(found.items())]


def _names(inputs: Sequence[InputAgain]) -> set[str]:
    return {each.source for each in inputs}


def _all_again(store: Store, log_state: LogState, planned: RestorePlan) -> list[InputAgain]:
    if not log_state.latest or log_state.latest == planned.epoch:  # nothing was read after it
        return []
    manifest = log_state.newest_readable(store.log.manifest)
    if manifest is None:
        return []
    newest = {
        name: _placed(cursor, manifest.source_identities.get(name, {})) for name, cursor in manifest.cursors.items()
    }
    uncounted = sorted(each.epoch for each in log_state.ancestry() if each.epoch > manifest.epoch)
    found = (_again(store, name, planned.cursors.get(name), newest[name]) for name in sorted(newest))
    return [_at_least(each, uncounted) for each in found if each is not None]


def _placed(cursor: Cursor, endpoint: Mapping[str, str]) -> Cursor:
    """Return a cursor with the absolute path of its endpoint: the program's own may be relative to another folder."""
    relative = isinstance(path := cursor.get("path"), str) and not (Path(path).is_absolute() or "://" in path)
    return {**cursor, "path": endpoint["path"]} if relative and "path" in endpoint else cursor


def _at_least(again: InputAgain, uncounted: Sequence[int]) -> InputAgain:
    if not uncounted or again.files is None:
        return again
    sentence = f"at least {again.sentence} ({epochs(uncounted)} cannot be read, and may have read more)"
    return replace(again, sentence=sentence, uncounted=tuple(uncounted))


def _again(store: Store, source: str, before: Cursor | None, newest: Cursor) -> InputAgain | None:
    from spark_ckpt_files.replay import replay

    if "segments" not in newest:  # only cursors of file sources name segments
        return None
    try:
        again = replay(store.location.child(FOLDER, source), before, newest)
    except CkptError as error:
        sentence = f"cannot list the input that a restore reads again: {error.what}"
        return InputAgain(source, None, None, sentence, error)
    if again is None:
        return None
    sentence = f"{counted(again.files, 'file')} of {again.path} will be read again"
    if again.missing:
        more = f" and {len(again.missing) - _NAMED_MAX} more" if len(again.missing) > _NAMED_MAX else ""
        sentence += f"; {len(again.missing)} of them are gone: {', '.join(again.missing[:_NAMED_MAX])}{more}"
    if again.forgotten:
        sentence += f"; {again.forgotten} more are gone and their names forgotten"
    if again.missing or again.forgotten:
        sentence += ". The job refuses to start without them, but for FilesSource(..., ignoreMissingFiles=True)"
    return InputAgain(source, again.files, again.missing, sentence)
