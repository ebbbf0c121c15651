"""What checkpoints store beside the protocol's records, by a rule that is the same for every protocol.

- A source's state is its offset, which stands in its record. The coordinator has no state.
- Everybody else stores its application state whole with each checkpoint of it: so many bytes, as the user says.
- A sink stores also the rows that it has taken in and not shown: they must not be lost with it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StoredSize:
    """A count of states, and the bytes of staged rows."""

    states: int = 0
    staged_bytes: int = 0

    def bytes(self, state_bytes: int) -> int:
        """All of it, if a state has `state_bytes`."""
        return self.states * state_bytes + self.staged_bytes
