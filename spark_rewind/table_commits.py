"""Commits that roll a table back. Pure rules: actions in, actions out.

The first commit, R, turns the newest version into the content of the base: it removes newer files and adds earlier ones
again. Metadata and the transaction number of each application (`txn`) are those of the base. So a sink does not skip a
batch that runs again. Then the commits between the base and the line follow unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_ckpt.delta_files import REWIND, Action
from spark_rewind.shifts import Shift
from spark_rewind.table_content import Content, FileKey, domain_of

KNOWN_FEATURES = frozenset(
    ("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "columnMapping", "deletionVectors",
     "timestampNtz", "v2Checkpoint", "inCommitTimestamp", "vacuumProtocolCheck", "variantType", "variantType-preview",
     "clustering", "domainMetadata"),
)  # fmt: skip
"""Table features that these commits support.

Other features keep counts of their own (row ids, identity columns) or need another way to commit (a catalog).
"""

CLUSTERING = "delta.clustering"
"""The one supported domain: the columns that a table is clustered by.

A file that comes back has statistics of its time. They are valid as long as these columns are the same.
"""

_COLUMN_MAPPING, _TIMESTAMPS = "delta.columnMapping.mode", "delta.enableInCommitTimestamps"


@dataclass(frozen=True, slots=True)
class Stamp:
    """Stamp of commits.

    - `identity`: identity of the rewind, the same in a later try.
    - `now_ms`: milliseconds since 1970.
    - `after_ms`: in-commit timestamp of the newest commit, for tables with such timestamps.
    - `engine`: name and version of the writer.
    - `raised`: applications whose number does not go back, but up to this one: incarnations of publishers.
    """

    identity: str
    now_ms: int
    after_ms: int = 0
    engine: str = "spark-ckpt"
    raised: Mapping[str, int] = field(default_factory=dict)


def refusal(now: Content, then: Content, replayed: Sequence[Sequence[Action]], *, undoes: bool = False) -> str | None:
    """Return the reason why these commits would be wrong for a table, None if they are right.

    `undoes`: the newest version is that of a rewind, which the commits undo.
    """
    named = {*(now.protocol.get("writerFeatures") or ()), *(now.protocol.get("readerFeatures") or ())}
    if strange := sorted(named - KNOWN_FEATURES):
        return f"it has the feature {strange[0]}"
    configuration = _configuration(now)
    managed = next((name for name in configuration if name.startswith("delta.coordinatedCommits.")), None)
    if managed:
        return f"its commits go through a catalog ({managed})"
    # The operator unset it for the rewind, whose commit brought it back. Unsetting it again would be a change of the
    # table, after which no undo is possible.
    if _is_set(configuration, "delta.appendOnly") and not undoes:
        return "nothing may be removed from it (delta.appendOnly): unset that for the time"
    # Its newest value is in the schema, which goes back with the metadata: values would be given twice.
    if "delta.identity." in str(now.metadata.get("schemaString")):
        return "it has an identity column"
    return _changed(now, then) or _domains(now, then, replayed) or _vectors(now, then, replayed)


def _changed(now: Content, then: Content) -> str | None:
    # Before its first version a table has neither protocol nor metadata.
    if then.protocol and then.protocol != now.protocol:
        return f"its protocol was changed after version {then.version}, and cannot be rolled back"
    if not then.metadata or then.metadata == now.metadata:
        return None
    before, after = _configuration(then), _configuration(now)
    if before.get(_TIMESTAMPS) != after.get(_TIMESTAMPS):
        return f"{_TIMESTAMPS} was changed after version {then.version}"
    if _COLUMN_MAPPING in {*before, *after}:
        return f"its metadata was changed after version {then.version}, and it maps columns ({_COLUMN_MAPPING})"
    return None


def _domains(now: Content, then: Content, replayed: Sequence[Sequence[Action]]) -> str | None:
    said = [domain_of(each) for actions in replayed for each in actions if "domainMetadata" in each]
    if then.metadata:
        said.append(dict(then.domains))
    named = {*now.domains, *(name for each in said for name in each)}
    if strange := sorted(named - {CLUSTERING}):
        return f"it has metadata of the domain {strange[0]}"
    if any(each.get(CLUSTERING) != now.domains.get(CLUSTERING) for each in said):
        return f"the columns that it is clustered by were changed after version {then.version}"
    return None


def _vectors(now: Content, then: Content, replayed: Sequence[Sequence[Action]]) -> str | None:
    back = [file for key, file in then.files.items() if key not in now.files]
    back += [each["add"] for actions in replayed for each in actions if "add" in each]
    marked = next((str(each["path"]) for each in back if each.get("deletionVector")), None)
    return None if marked is None else f"file {marked} would have to come back with its deletion vector"


def commits(
    shift: Shift, now: Content, then: Content, replayed: Sequence[Sequence[str]], writers: Sequence[str], stamp: Stamp
) -> list[str]:
    """Return the texts of the versions `shift.first` to `shift.last`.

    `replayed`: lines of the versions after the base up to the line. `writers`: applications whose number is written in
    any case, so that a concurrent commit of theirs conflicts.
    """
    texts = []
    for part in range(len(replayed) + 1):
        info = {"commitInfo": _info(shift, part, now, stamp)}
        if part == 0:
            actions = [json.dumps(each, separators=(",", ":")) for each in restoring(now, then, writers, stamp)]
        else:
            # As text: an action that is written again keeps fields that this version does not know.
            actions = [line for line in replayed[part - 1] if not _own(line, stamp.raised)]
        # The info first, as PROTOCOL.md asks of a table with in-commit timestamps.
        texts.append("".join(f"{line}\n" for line in (json.dumps(info, separators=(",", ":")), *actions)))
    return texts


def _own(line: str, raised: Mapping[str, int]) -> bool:
    """Return true for an action that a replayed commit must not repeat: its commit info, the unchanged protocol, and the
    number of an application that was raised.
    """
    action = json.loads(line)
    return not {"commitInfo", "protocol"}.isdisjoint(action) or action.get("txn", {}).get("appId") in raised


def _info(shift: Shift, part: int, now: Content, stamp: Stamp) -> Action:
    # By these a source of a job knows the versions that are written again, which it has read before.
    marked = json.dumps(
        {REWIND: stamp.identity, "part": part, "parts": shift.last - shift.first}, separators=(",", ":")
    )
    info: dict[str, Any] = {}
    if _is_set(_configuration(now), _TIMESTAMPS):
        # strictly above the newest commit's timestamp, as the protocol requires
        info["inCommitTimestamp"] = max(stamp.now_ms, stamp.after_ms + 1) + part
    return info | {
        "timestamp": stamp.now_ms + part,
        "operation": "RESTORE" if part == 0 else "WRITE",
        "operationParameters": {"version": str(shift.base)} if part == 0 else {"again": str(shift.base + part)},
        "isBlindAppend": False,
        "engineInfo": stamp.engine,
        "userMetadata": marked,
    }


def restoring(now: Content, then: Content, writers: Sequence[str], stamp: Stamp) -> Iterator[Action]:
    """Yield the actions that give a table of content `now` the content `then`."""
    if then.metadata and then.metadata != now.metadata:
        yield {"metaData": then.metadata}
    for app in sorted({*now.transactions, *writers}):
        # -1 for an application that the base does not know: its sink then takes every batch again
        number = stamp.raised.get(app, then.transactions.get(app, -1))
        if app in writers or number != now.transactions.get(app, -1):
            yield {"txn": {"appId": app, "version": number, "lastUpdated": stamp.now_ms}}
    # Both are changes of data: a reader that has read the removed files must stop here, or skip the change on purpose.
    yield from (_removing(key, now, stamp) for key in now.files if key not in then.files)
    yield from ({"add": {**file, "dataChange": True}} for key, file in then.files.items() if key not in now.files)


def _removing(key: FileKey, now: Content, stamp: Stamp) -> Action:
    file = now.files[key]
    kept = {name: file[name] for name in ("partitionValues", "size", "deletionVector") if name in file}
    # PROTOCOL.md asks for `extendedFileMetadata` if fields of the `add` follow.
    gone = {"path": file["path"], "deletionTimestamp": stamp.now_ms, "dataChange": True}
    return {"remove": gone | ({"extendedFileMetadata": True} if len(kept) > 1 else {}) | kept}


def needed_files(contents: Iterable[Content], replayed: Sequence[Sequence[Action]]) -> set[str]:
    """Return the data files, as the log spells them, that the table and its readers need: those of the table at the line
    and of each content that a reader reads as a snapshot (`contents`), and those of the replayed commits that a stream reads.
    """
    found = {path for content in contents for path, _ in content.files}
    for actions in replayed:
        # A stream skips what OPTIMIZE adds. Files of changed rows it reads, and they are no change of data.
        found |= {str(each["add"]["path"]) for each in actions if "add" in each and each["add"].get("dataChange", True)}
        found |= {str(each["cdc"]["path"]) for each in actions if "cdc" in each}
    return found


def after_replay(then: Content, replayed: Sequence[Sequence[Action]]) -> Content:
    """Return the table at the line: its base after the replayed commits."""
    for number, actions in enumerate(replayed, then.version + 1):
        then = then.after(number, actions)
    return then


def _configuration(content: Content) -> Mapping[str, str]:
    found = content.metadata.get("configuration") or {}
    return found if isinstance(found, Mapping) else {}


def _is_set(configuration: Mapping[str, str], name: str) -> bool:
    # Delta takes TRUE and True as well.
    return str(configuration.get(name)).lower() == "true"
