"""Size of the application state in checkpoints, without the protocol's records, by one rule for every protocol.

- A source's state is its offset, which is in its record. The coordinator has no state.
- Every other process stores its whole application state with each checkpoint: a size that the user chooses.
- A sink also stores the rows that it has received and not published: they must survive its failure.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StoredSize:
    """Number of stored states, and the bytes of staged rows."""

    states: int = 0
    staged_bytes: int = 0

    def bytes(self, state_bytes: int) -> int:
        """Return all bytes, if one state has `state_bytes`."""
        return self.states * state_bytes + self.staged_bytes
