"""What stands between machines and an unkind world: the contract's own parts, of which a test can plant wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spark_ckpt.protocol.acknowledgements import Acknowledgements
from spark_ckpt.protocol.ids import Incarnation, ProcessId
from spark_ckpt.protocol.transport import Transport
from spark_ckpt.protocol.writer_fence import WriterFence
from spark_ckpt.simulator.durable import Storage


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
