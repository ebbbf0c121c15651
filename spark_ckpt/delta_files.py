"""The log of a Delta table, as its files spell it (PROTOCOL.md, "Delta Log Entries", "Checkpoints", "Actions").

The store, the Delta connector and `spark_rewind` read logs with this module; each opens the files in its own way. No
library tells which commit added which files, in which order, and with which transactions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from spark_ckpt.errors import LogDamaged

LOG = "_delta_log"
Action = Mapping[str, Any]
"""One action of a commit: its kind and its body, such as `{"add": {"path": ...}}`."""

# Checkpoints of version 2 have a UUID in their names, those of several parts two numbers (PROTOCOL.md, "Checkpoints").
_FILE = re.compile(r"(\d{20})\.(json|checkpoint(?:\.[0-9a-zA-Z-]+|\.\d{10}\.\d{10})?\.(?:parquet|json))")


REWIND = "spark_rewind"
"""Key in `userMetadata`, a JSON object, with the identity of the rewind that made a version."""


class Rewound(NamedTuple):
    """The rewind that made a version.

    `part`: 0 for the version that rolls the table back, else the number of an earlier version that was written again after
    it. `parts`: how many were.
    """

    identity: str
    part: int
    parts: int


@dataclass(frozen=True, slots=True)
class TableCommit:
    """The actions of one table version, in the order of the log."""

    version: int
    actions: Sequence[Action]

    def bodies(self, kind: str) -> list[Mapping[str, Any]]:
        """Return the bodies of all actions of a kind, such as "add"."""
        return [each[kind] for each in self.actions if kind in each]

    def body(self, kind: str) -> Mapping[str, Any] | None:
        """Return the body of the first action of a kind; None without one."""
        return next(iter(self.bodies(kind)), None)

    @property
    def operation(self) -> str:
        """Name of the operation, as the writer recorded it."""
        return str((self.body("commitInfo") or {}).get("operation", "an unknown operation"))

    @property
    def rewound(self) -> Rewound | None:
        """The rewind that made this version; None for another writer."""
        try:
            said = json.loads(str((self.body("commitInfo") or {}).get("userMetadata")))
        except ValueError:
            return None
        if not isinstance(said, dict) or REWIND not in said:
            return None
        part, parts = said.get("part"), said.get("parts", 0)
        return Rewound(str(said[REWIND]), part, parts) if isinstance(part, int) and isinstance(parts, int) else None

    @property
    def transactions(self) -> tuple[tuple[str, int], ...]:
        """Application and number of each transaction. Raises KeyError, TypeError, ValueError for other bodies."""
        return tuple((str(body["appId"]), int(body["version"])) for body in self.bodies("txn"))


def commit_name(version: int) -> str:
    """Return the file name of a commit in the log folder."""
    return f"{version:020d}.json"


def commit_path(version: int) -> str:
    """Return the path of a commit, relative to the table."""
    return f"{LOG}/{commit_name(version)}"


def log_file(name: str) -> tuple[int, str] | None:
    """Return version and kind of a file of the log by its name; None for another file.

    Kinds: "json" is a commit, "checkpoint.parquet" a checkpoint in one file. Other kinds that begin with "checkpoint"
    have several files.
    """
    found = _FILE.fullmatch(name)
    return None if found is None else (int(found[1]), found[2])


def versions_in(names: Iterable[str], kind: str = "json") -> list[int]:
    """Return the versions of all files whose kind begins with `kind`, in order and each once."""
    found = (log_file(name) for name in names)
    return sorted({each[0] for each in found if each is not None and each[1].startswith(kind)})


def oldest_without_gap(commits: Collection[int], newest: int) -> int:
    """Return the oldest version from which `commits` has each up to `newest`; `newest` + 1 if it lacks that one."""
    there, version = set(commits), newest + 1
    while version - 1 in there:
        version -= 1
    return version


def actions_in(text: str | bytes, where: str, hint: str) -> list[dict[str, Any]]:
    """Return the actions of a commit, or of a checkpoint in JSON. Raises `LogDamaged`, which names the file `where`."""
    try:
        # Only "\n" ends a line: a text in an action may have U+2028 or U+0085, at which `splitlines` splits.
        lines = (text.decode() if isinstance(text, bytes) else text).split("\n")
        # One call for all lines: a log has many thousand small commits.
        actions = json.loads(f"[{','.join(line for line in lines if line.strip())}]")
    except ValueError as error:
        raise LogDamaged(f"{where} is not JSON", hint=hint) from error
    if not all(map(_is_action, actions)):
        raise LogDamaged(f"{where} holds something else than actions", hint=hint)
    return cast(list[dict[str, Any]], actions)


def _is_action(found: object) -> bool:
    return isinstance(found, dict) and len(found) == 1 and all(isinstance(body, dict) for body in found.values())
