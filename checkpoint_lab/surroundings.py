"""The contract's parts between machines and an unreliable world; a test can plant wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from checkpoint_lab.durable import Storage
from checkpoint_protocols.ids import Incarnation, ProcessId
from checkpoint_protocols.transport import Transport
from checkpoint_protocols.writer_fence import Acknowledgements, WriterFence


@dataclass(frozen=True)
class Surroundings:
    """Factories of each process's parts."""

    transport: Callable[[ProcessId, Incarnation], Transport] | None = Transport
    """Transport of control channels that lose and repeat messages. None: machines get every message as it comes."""
    fence: Callable[[], WriterFence] = WriterFence
    acknowledgements: Callable[[], Acknowledgements] = Acknowledgements

    def storage(self) -> Storage:
        """Return a process's durable storage."""
        return Storage(self.fence(), self.acknowledgements())


CONTRACT = Surroundings()
