"""What a dead query says, as one of our errors: typed errors raised in tasks keep their condition."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from spark_ckpt import errors
from spark_ckpt.errors import CkptError, RunFailed

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_TYPED = re.compile(r"\[(CKPT_[A-Z_]+)\] ([^\n]+)((?:\n  [^\n]+: [^\n]*)*)")
_PYTHON = re.compile(r"^[\w.]*\w(?:: .*)?$", re.MULTILINE)
_PLAN = "\n=== Streaming Query ==="
"""What Spark appends to a query's error: ids, offsets, and the plan, in which the texts of `raise_error` appear."""
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w{5}$")
_SHOWN_CHARS = 2000


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
        return QueryFailed(_shortened(text), hint="the full trace is in Spark's log")
    error = _class_of(found[1])(_SQLSTATE.sub("", found[2].strip()))
    for line in found[3].strip().splitlines():
        name, _, value = line.strip().partition(": ")
        if name == "next":
            error.hint = value
        else:
            error.context[name] = value
    return error


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
