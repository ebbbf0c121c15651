"""Encoding of events, effects and an incarnation's start as JSON, without secrets and without row content.

Left out:

- storage options and roots,
- texts of errors,
- column statistics and partition values (also inside paths),
- the parts of a manifest that only observability needs.

The rest is everything that the rules decide by, so a replay decides the same. Encoding a decoded value changes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache

from pydantic import BaseModel, JsonValue

from checkpoint_protocols.machine import Effect, Event
from spark_ckpt import errors
from spark_ckpt.connector import EpochOutput, StagedEarly, StagedFile
from spark_ckpt.coordination.job_shape import SinkPlace
from spark_ckpt.coordination.messages import CommitEpoch, CommitFenced
from spark_ckpt.coordination.reports import Report
from spark_ckpt.epochs.records import Manifest, StagedFileRecord
from spark_ckpt.epochs.restore import RecoveryPoint
from spark_ckpt.errors import CkptError, PublishFailed

Object = dict[str, JsonValue]

_LEFT_OUT: Mapping[type, frozenset[str]] = {
    SinkPlace: frozenset({"root", "storage_options"}),
    EpochOutput: frozenset({"root", "storage_options"}),
    StagedEarly: frozenset({"root", "storage_options"}),
    CommitFenced: frozenset({"why"}),
    StagedFile: frozenset({"partition_values", "stats"}),
    StagedFileRecord: frozenset({"partition_values", "stats"}),
    Manifest: frozenset({"timings", "graph"}),
}


def encoded(value: object) -> JsonValue:
    """Return any value of the rules as JSON.

    An event or effect gets its class as `kind`. Raises `TypeError` for other values.
    """
    match value:
        # An Enum may be a text, too, and is encoded by its value below.
        case None | bool() | int() | float() | str() if not isinstance(value, Enum):
            return value
        case Enum():
            return encoded(value.value)
        case CkptError():
            return _error(value)
        case Manifest():
            return reference(value)
        case CommitEpoch():
            return _object(value) | {"manifest": whole(value.manifest)}  # in full once: other lines refer to it
        case RecoveryPoint():
            return _point(value)
        case Report():
            return _object(value) | {"body": _body(value.body)}
        case BaseModel():
            return _model(value)
        case Mapping():
            return {str(key): encoded(each) for key, each in value.items()}
        case AbstractSet():
            return sorted(map(encoded, value), key=str)  # a set has another order in each process
        case Sequence():
            return [encoded(each) for each in value]
    if is_dataclass(value):
        return _object(value)
    raise TypeError(f"a trace has no place for {type(value).__name__}")


def _object(value: object) -> Object:
    kind: Object = {"kind": type(value).__name__} if isinstance(value, Event | Effect) else {}
    left_out = _LEFT_OUT.get(type(value), frozenset())
    names = [field.name for field in fields(value) if field.name not in left_out]  # type: ignore[arg-type]
    return kind | {name: _named(name, getattr(value, name)) for name in names}


def _model(value: BaseModel) -> Object:
    left_out = _LEFT_OUT.get(type(value), frozenset())
    # Not `model_dump`: nested values and paths have rules of their own here.
    names = [name for name in type(value).model_fields if name not in left_out]
    return {name: _named(name, getattr(value, name)) for name in names}


def _named(name: str, value: object) -> JsonValue:
    # The folders of a path may be partition values, which are row content.
    return value.rpartition("/")[2] if name == "path" and isinstance(value, str) else encoded(value)


def _error(error: CkptError) -> Object:
    """Encode the facts that the rules read: the kind, and the presence of a file."""
    # Without the text, which may contain anything.
    return {"condition": _kind(error).condition, "expects": "file" in error.context}


def _kind(error: CkptError) -> type[CkptError]:
    """Return the error's own class, or the nearest class of the core's tree: a connector may have its own subclasses."""
    known = [kind for kind in type(error).__mro__ if kind.__module__ == CkptError.__module__ and kind in _kinds()]
    # The rules ask an error if it is retriable: the class in the trace must answer the same.
    alike = [kind for kind in known if kind.retriable == error.retriable]
    return alike[0] if alike else PublishFailed if error.retriable else CkptError


@cache
def _kinds() -> frozenset[type[CkptError]]:
    return frozenset(kinds_of_errors().values())


def kinds_of_errors() -> Mapping[str, type[CkptError]]:
    """Return the core's error classes by condition."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, CkptError)]
    return {kind.condition: kind for kind in kinds}


def _body(body: Mapping[str, object]) -> Object:
    """Encode numbers, and names and digests of files. Other texts that a task reports may contain rows."""
    kept: Object = {}
    for name, value in body.items():
        if name == "files" and isinstance(value, list):
            kept[name] = [_file(each) for each in value]
        elif name == "groups" and isinstance(value, list):
            kept[name] = [int(each) for each in value]
        elif value is None or isinstance(value, bool | int | float):
            kept[name] = value
        elif name in ("path", "sha256") and isinstance(value, str):
            kept[name] = _named(name, value)
    return kept


def _file(file: Mapping[str, object]) -> Object:
    return {name: _named(name, value) for name, value in file.items()}


def whole(manifest: Manifest) -> Object:
    """Return a manifest with everything that a replay needs."""
    return _model(manifest)


def reference(manifest: Manifest) -> Object:
    """Return a reference to a manifest that the trace has in full elsewhere: id and time as stored, and a digest of the
    rest.
    """
    return {
        "epoch": manifest.epoch,
        "attempt": manifest.attempt,
        "created_ms": manifest.created_ms,
        "digest": digest_of(manifest),
    }


def digest_of(manifest: Manifest) -> str:
    """Return a digest of everything except the id and time that a manifest gets when it is stored."""
    content = {name: value for name, value in whole(manifest).items() if name not in ("attempt", "created_ms")}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _point(point: RecoveryPoint) -> Object:
    # In full: no other line has the manifests of earlier incarnations.
    unpublished = {sink: [whole(each) for each in manifests] for sink, manifests in point.unpublished.items()}
    return _object(point) | {"manifest": whole(point.manifest), "unpublished": encoded(unpublished)}
