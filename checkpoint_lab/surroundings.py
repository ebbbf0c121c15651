"""What stands between machines and an unkind world: the contract's own parts, of which a test can plant wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from checkpoint_lab.durable import Storage
from checkpoint_protocols.acknowledgements import Acknowledgements
from checkpoint_protocols.ids import Incarnation, ProcessId
from checkpoint_protocols.transport import Transport
from checkpoint_protocols.writer_fence import WriterFence


@dataclass(frozen=True)
class Surroundings:
    """Makers of each process's parts."""

    transport: Callable[[ProcessId, Incarnation], Transport] | None = Transport
    """Of control channels that lose and repeat. None: machines hear whatever comes."""
    fence: Callable[[], WriterFence] = WriterFence
    acknowledgements: Callable[[], Acknowledgements] = Acknowledgements

    def storage(self) -> Storage:
        """A process's durable records."""
        return Storage(self.fence(), self.acknowledgements())


CONTRACT = Surroundings()
