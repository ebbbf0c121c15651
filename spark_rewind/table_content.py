"""Content of a Delta table at a version, as the actions of its log (PROTOCOL.md, "Action Reconciliation").

No library returns the actions themselves, and a file that comes back needs every field of its action.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spark_ckpt.delta_files import LOG, Action, actions_in, commit_path, oldest_without_gap, versions_in
from spark_ckpt.errors import LogDamaged, RewindUnsupported
from spark_rewind.reading import names, text_of
from spark_rewind.tables import parquet_rows

FileKey = tuple[str, str]
"""A data file's path as the log spells it, and its deletion vector, empty for none.

Both together identify an entry of the table.
"""

_CLASSIC = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10}))?\.parquet")
_HINT = "restore the table's log from a backup; nothing was changed"
_MAPS = {"add": ("partitionValues", "tags"), "metaData": ("configuration",)}
# Copies of other fields, which only checkpoints have.
_LEFT_OUT = ("stats_parsed", "partitionValues_parsed")


@dataclass(frozen=True, slots=True)
class Content:
    """A table as of a version; at -1 it has no files.

    `transactions`: newest number of each application. `domains`: by name, data of features and applications in addition
    to the metadata (`domainMetadata`).
    """

    version: int = -1
    protocol: Action = field(default_factory=dict)
    metadata: Action = field(default_factory=dict)
    files: Mapping[FileKey, Action] = field(default_factory=dict)
    transactions: Mapping[str, int] = field(default_factory=dict)
    domains: Mapping[str, str] = field(default_factory=dict)

    def after(self, version: int, actions: Iterable[Action]) -> Content:
        """Return the table after one more commit."""
        return _reconciled(self, [(version, actions)])


def content_at(root: Path, version: int) -> Content:
    """Return a table as of a version.

    Raises `LogDamaged`, `RewindUnsupported` (its log begins with a checkpoint of another kind).
    """
    start = _start(root / LOG, version)
    content = Content() if start < 0 else _from_checkpoint(root / LOG, start)
    return _reconciled(content, _commits(root, start + 1, version))


def contents_at(root: Path, version: int, newest: int) -> tuple[Content, Content]:
    """Return a table as of a version and as of a newer one. Raises the errors of `content_at`."""
    then = content_at(root, version)
    return then, _reconciled(then, _commits(root, version + 1, newest))


def _commits(root: Path, first: int, last: int) -> Iterator[tuple[int, Sequence[Action]]]:
    for number in range(first, last + 1):
        yield number, parsed(commit_lines(root, number), number)


def commit_lines(root: Path, version: int) -> list[str]:
    """Return the lines of a commit unchanged. Raises `LogDamaged`."""
    path = root / commit_path(version)
    try:
        return [line for line in text_of(path).split("\n") if line.strip()]
    except FileNotFoundError:
        raise LogDamaged(f"{path} is missing", hint=_HINT) from None


def parsed(lines: Iterable[str], version: int) -> Sequence[Action]:
    """Parse the actions of a commit. Raises `LogDamaged`."""
    return actions_in("\n".join(lines), f"version {version}", _HINT)


def key_of(file: Action) -> FileKey:
    """Return the entry of the table that an `add` or `remove` refers to."""
    vector = file.get("deletionVector")
    if not vector:
        return str(file["path"]), ""
    # The unique id of a deletion vector, as PROTOCOL.md makes it.
    return str(file["path"]), f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset')}"


def _reconciled(content: Content, commits: Iterable[tuple[int, Iterable[Action]]]) -> Content:
    """Return the table after commits, each with its version."""
    # Copied once, and not for each commit: a log has many thousands.
    version, files, transactions = content.version, dict(content.files), dict(content.transactions)
    protocol, metadata = content.protocol, content.metadata
    domains: dict[str, str | None] = dict(content.domains)
    for version, actions in commits:  # noqa: B007 - the last one is the version of the result
        adds = []
        for each in actions:
            # a commit may remove and add one entry: removals apply first, so additions are collected
            if "remove" in each:
                files.pop(key_of(each["remove"]), None)
            elif "add" in each:
                adds.append(each["add"])
            elif "txn" in each:
                transactions[str(each["txn"]["appId"])] = int(each["txn"]["version"])
            elif "domainMetadata" in each:
                domains |= domain_of(each)
            protocol = each.get("protocol", protocol)
            metadata = each.get("metaData", metadata)
        files |= {key_of(each): each for each in adds}
    kept = {name: text for name, text in domains.items() if text is not None}
    return Content(version, protocol, metadata, files, transactions, kept)


def domain_of(action: Action) -> dict[str, str | None]:
    """Return a domain with the text that an action sets, None for a removed domain."""
    said = action["domainMetadata"]
    return {str(said["domain"]): None if said.get("removed") else str(said.get("configuration", ""))}


# -- checkpoints of the log ----------------------------------------------------------------------------------------------


def _start(log: Path, version: int) -> int:
    """Return the checkpoint to begin with, -1 if the log has all commits from version 0 on."""
    listed = set(names(log))
    if oldest_without_gap(versions_in(listed), version) == 0:
        return -1
    whole = _whole_checkpoints(listed)
    found = max((number for number in whole if number <= version), default=None)
    if found is None:
        what = f"{log} has no checkpoint of the classic kind at or before version {version}"
        raise RewindUnsupported(
            what, hint="roll back to a version whose commits all exist, or restore the table yourself"
        )
    return found


def _whole_checkpoints(listed: Iterable[str]) -> list[int]:
    # a checkpoint counts only with all of its parts: a writer may have died in between
    parts: dict[tuple[int, int], int] = {}
    for name in listed:
        if found := _CLASSIC.fullmatch(name):
            # A version may have both a whole and a divided checkpoint.
            place = int(found[1]), int(found[2] or 1)
            parts[place] = parts.get(place, 0) + 1
    return [number for (number, count), there in parts.items() if there >= count]


def _from_checkpoint(log: Path, version: int) -> Content:
    content = Content(version)
    for name in sorted(names(log)):
        found = _CLASSIC.fullmatch(name)
        if found and int(found[1]) == version:
            content = content.after(version, _rows(log / name))
    return replace(content, version=version)


def _rows(path: Path) -> Iterator[Action]:
    found = parquet_rows(path, ("protocol", "metaData", "add", "txn", "domainMetadata", "sidecar"))
    # Checkpoints of version 2 may list their files elsewhere: read as a classic one, the table would seem empty.
    if found.pop("sidecar"):
        raise RewindUnsupported(f"{path} is a checkpoint with sidecars", hint="restore the table yourself")
    for kind, rows in found.items():
        yield from ({kind: _row(kind, row)} for row in rows)


def _row(kind: str, row: Mapping[str, Any]) -> Action:
    """Return a row of a checkpoint as a commit spells it: maps become objects, unset fields are left out."""
    found = {name: value for name, value in row.items() if value is not None and name not in _LEFT_OUT}
    for name in _MAPS.get(kind, ()):
        if name in found:
            found[name] = dict(found[name])
    if kind == "metaData" and "format" in found:
        found["format"] = dict(found["format"]) | {"options": dict(found["format"].get("options") or ())}
    return found
