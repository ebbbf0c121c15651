"""Messages between a publisher and its processes: JSON lines over pipes, so that secrets do not show in `ps`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from spark_ckpt import errors
from spark_ckpt.errors import CkptError
from spark_ckpt_kafka.options import Connection, Tuning
from spark_ckpt_kafka.producer import ProducerFailed
from spark_ckpt_kafka.publishing import LaneSettings, Published, Request
from spark_ckpt_kafka.rows import StagedPart

Message = dict[str, Any]

_ERRORS = {
    kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, CkptError)
}


def encode(message: Mapping[str, Any]) -> bytes:
    """Return the message as one line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Return the message of one line."""
    message: Message = json.loads(line)
    return message


def settings_message(settings: LaneSettings) -> Message:
    """Return the first line that a publisher process reads."""
    return asdict(settings)


def settings_of(message: Message) -> LaneSettings:
    """Return the settings of a message; the inverse of `settings_message`. Consumes the message."""
    connection, tuning = Connection(**message.pop("connection")), Tuning(**message.pop("tuning"))
    return LaneSettings(connection=connection, tuning=tuning, **message)


def request_message(request: Request) -> Message:
    """Return the message for one epoch to publish."""
    return asdict(request)


def ahead_message(request: Request) -> Message:
    """Return the message for an early send: the files so far of an uncommitted epoch."""
    return {"ahead": request_message(request)}


def request_of(message: Message) -> Request:
    """Return the request of a message; the inverse of `request_message`. Consumes the message."""
    parts = [StagedPart(**part) for part in message.pop("parts")]
    dropped, beside = tuple(message.pop("dropped")), tuple(message.pop("beside"))
    return Request(parts=parts, dropped=dropped, beside=beside, **message)


VERIFIED: Message = {"verified": True}
"""From a publisher process: its rows match the committed manifest, and it waits for `GO` before it publishes."""
GO: Message = {"go": True}


DROP: Message = {"drop": True}
"""To a publisher process: abort the early send."""


def sent_message(rows: int) -> Message:
    """Return the answer to an early send, and with 0 rows to `DROP`."""
    return {"sent": rows}


def published_message(published: Published) -> Message:
    """Return the answer for a success."""
    return {"published": asdict(published)}


def failure_message(error: CkptError | ProducerFailed) -> Message:
    """Return the answer for a failure: of this attempt (`attempt`), or one for the operator (`error`)."""
    if isinstance(error, ProducerFailed):
        names = ("what", "fenced", "hint", "refusal", "key")
        return {"attempt": {name: getattr(error, name) for name in names}}
    context = {name: str(value) for name, value in error.context.items()}
    return {"error": {"kind": type(error).__name__, "what": error.what, "hint": error.hint, "context": context}}


def result_of(message: Message) -> Published:
    """Return the result of an answer. Raises its failure on this side."""
    if "published" in message:
        return Published(**message["published"])
    raise _failure(message)


def sent_of(message: Message) -> int:
    """Return the number of early-sent rows of an answer. Raises its failure on this side."""
    if "sent" in message:
        return int(message["sent"])
    raise _failure(message)


def _failure(message: Message) -> CkptError | ProducerFailed:
    if "attempt" in message:
        return ProducerFailed(**message["attempt"])
    failed = message["error"]
    return _ERRORS[failed["kind"]](failed["what"], hint=failed["hint"], **failed["context"])
