"""What travels between a publisher and its lane processes: JSON lines over pipes, so that secrets stay off
`ps`.
"""

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
    """One line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message of one line."""
    message: Message = json.loads(line)
    return message


def settings_message(settings: LaneSettings) -> Message:
    """The first line a lane process reads."""
    return asdict(settings)


def settings_of(message: Message) -> LaneSettings:
    """The inverse of `settings_message`."""
    connection, tuning = Connection(**message.pop("connection")), Tuning(**message.pop("tuning"))
    return LaneSettings(connection=connection, tuning=tuning, **message)


def request_message(request: Request) -> Message:
    """One epoch to publish."""
    return asdict(request)


def ahead_message(request: Request) -> Message:
    """Files so far of an epoch that is not decided."""
    return {"ahead": request_message(request)}


def request_of(message: Message) -> Request:
    """The inverse of `request_message`."""
    parts = [StagedPart(**part) for part in message.pop("parts")]
    dropped, beside = tuple(message.pop("dropped")), tuple(message.pop("beside"))
    return Request(parts=parts, dropped=dropped, beside=beside, **message)


VERIFIED: Message = {"verified": True}
"""From a lane: its rows are what was decided; it waits for `GO` before it publishes them."""
GO: Message = {"go": True}


DROP: Message = {"drop": True}
"""To a lane: abort what was sent ahead."""


def sent_message(rows: int) -> Message:
    """The answer to files sent ahead, and with 0 rows to `DROP`."""
    return {"sent": rows}


def published_message(published: Published) -> Message:
    """A success."""
    return {"published": asdict(published)}


def failure_message(error: CkptError | ProducerFailed) -> Message:
    """A failure: of this attempt (`attempt`), or for the operator (`error`)."""
    if isinstance(error, ProducerFailed):
        names = ("what", "fenced", "hint", "refusal", "key")
        return {"attempt": {name: getattr(error, name) for name in names}}
    context = {name: str(value) for name, value in error.context.items()}
    return {"error": {"kind": type(error).__name__, "what": error.what, "hint": error.hint, "context": context}}


def result_of(message: Message) -> Published:
    """What a reply says: the result, or the failure raised again on this side."""
    if "published" in message:
        return Published(**message["published"])
    raise _failure(message)


def sent_of(message: Message) -> int:
    """How many rows were sent ahead, or the failure raised again on this side."""
    if "sent" in message:
        return int(message["sent"])
    raise _failure(message)


def _failure(message: Message) -> CkptError | ProducerFailed:
    if "attempt" in message:
        return ProducerFailed(**message["attempt"])
    failed = message["error"]
    return _ERRORS[failed["kind"]](failed["what"], hint=failed["hint"], **failed["context"])
