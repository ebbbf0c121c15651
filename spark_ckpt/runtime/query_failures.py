"""What a dead query says, as one of our errors: typed errors raised in tasks keep their condition."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from spark_ckpt import errors
from spark_ckpt.errors import CkptError, RunFailed, StoreFull, StoreIoFailed, StoreReadOnly
from spark_ckpt.storage_errors import outage, refusal_said

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_TYPED = re.compile(r"\[(CKPT_[A-Z_]+)\] ([^\n]+)((?:\n  [^\n]+: [^\n]*)*)")
_PYTHON = re.compile(r"^[\w.]*\w(?:: .*)?$", re.MULTILINE)
_PLAN = "\n=== Streaming Query ==="
"""What Spark appends to a query's error: ids, offsets, and the plan, in which the texts of `raise_error` appear."""
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w{5}$")
_SHOWN_CHARS = 2000
_RAISED = re.compile(
    r"\b\w*(?:IO|FS|OS|FileSystem|Arrow|Spark|Runtime|Query)\w*(?:Exception|Error)\b|\berrno\b|\bos error\b", re.I
)
"""A line of a trace that says what was raised: a record that says "No space left on device" fills no disk."""
_JAVAS_FRAME = re.compile(r"^[\s:]*(?:Caused by: |Suppressed: )?")
_OF_DISKS = (StoreFull, StoreReadOnly, StoreIoFailed)
_HINT_DISKS = (
    "look at the disks of Spark's checkpoint (run_dir), its temporary files (spark.local.dir), the local cache (local_dir) "
    "and the store; a running job goes on by itself when they serve again"
)


class QueryFailed(RunFailed):
    """Spark's query died; another incarnation may succeed."""

    condition = "CKPT_QUERY_FAILED"
    retriable = True


def failure_of(query: StreamingQuery | None) -> CkptError:
    """Why the query is not running any more."""
    cause = query.exception() if query is not None else None
    if cause is None:
        return QueryFailed(
            "the streaming query stopped, nobody asked it to",
            hint="look for StreamingQuery.stop in the program",
        )
    return failure_in(str(cause))


def failure_in(text: str) -> CkptError:
    """The typed error in Spark's message, or the message itself, shortened to what a person reads."""
    text = text.split(_PLAN, 1)[0]
    found = _TYPED.search(text)
    if found is None:
        return _disk_failure(text) or QueryFailed(_shortened(text), hint="the full trace is in Spark's log")
    error = _class_of(found[1])(_SQLSTATE.sub("", found[2].strip()))
    for line in found[3].strip().splitlines():
        name, _, value = line.strip().partition(": ")
        if name == "next":
            error.hint = value
        else:
            error.context[name] = value
    return error


def typed(error: BaseException) -> CkptError:
    """What went wrong while an incarnation began or ran, as one of ours: nobody has to know the libraries below."""
    if isinstance(error, CkptError):
        return error
    if isinstance(error, OSError):
        return outage(error.filename if isinstance(error.filename, str) else "this machine", error)
    said = str(error)
    return (failure_in(said) if _TYPED.search(said) else _disk_failure(said)) or RunFailed(
        f"{type(error).__name__}: {said}"
    )


def _disk_failure(text: str) -> CkptError | None:
    """A disk's refusal in a trace of Java or Python, which does not name the folder: Spark writes to several."""
    for line in text.splitlines():
        refusal = refusal_said(line) if _RAISED.search(line) else None
        if refusal is not None and refusal.kind in _OF_DISKS:
            said = _JAVAS_FRAME.sub("", line)[:_SHOWN_CHARS]
            return refusal.kind(f"{refusal.meaning}: {said}", hint=_HINT_DISKS)
    return None


def _class_of(condition: str) -> type[CkptError]:
    kinds = [CkptError]
    while kinds:
        kind = kinds.pop()
        if kind.condition == condition:
            return kind
        kinds += kind.__subclasses__()
    return errors.RunFailed


def _shortened(text: str) -> str:
    """A Python traceback's last line, else the first line."""
    _, _, traceback = text.rpartition("Traceback (most recent call last):\n")
    raised = _PYTHON.search(traceback) if traceback != text else None
    return (raised[0] if raised else text.strip().split("\n", 1)[0])[:_SHOWN_CHARS]
