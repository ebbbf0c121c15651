"""Adaptive logging as seed 004 has it."""

from __future__ import annotations

from dataclasses import replace

from checkpoint_protocols.message_logging.adaptive_logging import PROTOCOL, AdaptiveWorker
from checkpoint_protocols.vocabulary import Envelope


class SenderAhead(AdaptiveWorker):
    """E13: "if the sender is ahead, the receiver will log the message. If not, it won't worry about it"."""

    def _must_be_logged(self, message: Envelope) -> bool:
        return message.index > self.index


SENDER_AHEAD = replace(PROTOCOL, worker=SenderAhead, sound=False)
