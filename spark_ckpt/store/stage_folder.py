"""The folder of a program with stages: one store for each stage, and a file that names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.names import valid_name
from spark_ckpt.epochs.partial_recovery import of_stage
from spark_ckpt.epochs.recovery_text import restore_call
from spark_ckpt.epochs.restore import RestoreTarget
from spark_ckpt.errors import CkptError, ConfigInvalid, GraphInvalid, StoreForeign
from spark_ckpt.store.existing import existing_store, job_of
from spark_ckpt.store.location import Location
from spark_ckpt.store.schemes import store_location

_FILE = "stages.json"


class Stages(BaseModel):
    """Content of the file: the program, and by stage the stages whose edges it reads."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    job: str
    stages: Mapping[str, tuple[str, ...]]

    @field_validator("stages")
    @classmethod
    def _names_are_folders(cls, stages: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
        for name in stages:
            valid_name("stage", name)
        return stages


def stage_job(job: str, stage: str) -> str:
    """Return the name of a stage's job: that of its store, log lines, metrics."""
    return f"{job}.{stage}"


def record_stages(root: Location, known: Stages) -> None:
    """Write the stages of a program below `root`, unless the file has them.

    Raises `StoreForeign` for another's folder, `GraphInvalid` if a stage is gone that has a store.
    """
    before = read_stages(root)
    if before == known:
        return
    if before is not None and before.job != known.job:
        raise StoreForeign(
            f"{root.uri} has the stages of job '{before.job}', not of '{known.job}'",
            hint="give each program with stages a folder of its own",
        )
    if before is None and (owner := _owner(root)) is not None:
        raise StoreForeign(
            f"{root.uri} is the store of job '{owner}', which had no stages",
            hint="give the program a new folder: the state of one query cannot be dealt out to several",
        )
    for name in before.stages if before is not None else ():
        if name not in known.stages and _has_epochs(root.child(name)):
            _refuse_left(root, name)
    root.write_bytes(_FILE, known.model_dump_json().encode())


def _refuse_left(root: Location, stage: str) -> NoReturn:
    raise GraphInvalid(
        f"the program no longer has stage '{stage}': the state of its operators, and the rows that it has not read, would be lost",
        stage=stage,
        # A loop, and a protocol that decides lines, refuse availableNow.
        hint="give the stage its name back; or run the program that has it once more, until the stage has read its input to the "
        f"end (with availableNow=True, or call run.stop() then), and move its store to another place: {root.child(stage).uri}",
    )


def read_stages(root: Location) -> Stages | None:
    """Return the stages below `root`; None if it is no folder of a program with stages. Raises `ConfigInvalid`."""
    try:
        return Stages.model_validate_json(root.read_bytes(_FILE))
    except FileNotFoundError:
        return None
    except (ValidationError, ConfigInvalid) as error:
        raise ConfigInvalid(
            f"{_FILE} in {root.uri} cannot be read",
            hint="delete the file and start the program: it writes the file again; or name the stores of its stages instead",
        ) from error


def stores_below(uri: str, storage_options: Mapping[str, str]) -> list[str]:
    """Return the stores of the stages below `uri`, or `uri` itself if it is one store."""
    root = store_location(uri, storage_options)
    found = read_stages(root)
    return [uri] if found is None else [root.child(stage).uri for stage in found.stages]


def in_terms_of_stage(store: Location, hint: str) -> str:
    """Return the hint with the starts of the stage that the store is of; unchanged for a job without stages."""
    above, _, stage = store.uri.rpartition("/")
    known = None
    # A command without the right to read the folder above still gives its advice.
    with suppress(CkptError):
        known = read_stages(Location(above, store.storage_options))
    return hint if known is None or stage not in known.stages else of_stage(hint, stage)


def restore_call_of(store: Location, log_state: LogState, target: RestoreTarget, new_sinks: Sequence[str] = ()) -> str:
    """Return `restore_call` for the owner of a store: a job, a stage of a program, or an outbox."""
    return in_terms_of_stage(store, restore_call(log_state, target, new_sinks))


def _has_epochs(store: Location) -> bool:
    # Before its first epoch a stage has no state, and has read nothing.
    return _owner(store) is not None and bool(existing_store(store.uri, store.storage_options).log.state().epochs)


def _owner(root: Location) -> str | None:
    try:
        return job_of(root)
    except StoreForeign:
        return None
