"""What was sent to a sink before its epoch was decided, and the rule for its use: all of it or nothing.

An open transaction counts as a beginning of an epoch's output if it was filled for this epoch in this incarnation, with
exactly the files that the output begins with. Everything else in it, and all doubt, ends it: it is aborted, and the staged
files are sent. Within an incarnation no number is given to two epochs, so number and incarnation name the attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

File = TypeVar("File")


@dataclass(frozen=True, slots=True)
class SentAhead(Generic[File]):
    """Files whose rows an open transaction holds, in their order. Files are compared by value: path, size, digest."""

    epoch: int
    incarnation: int
    files: tuple[File, ...] = ()

    def rest_of(self, epoch: int, incarnation: int, files: Sequence[File]) -> Sequence[File] | None:
        """Which of an epoch's files are not in it; None if it is no beginning of them, and must be aborted."""
        if (self.epoch, self.incarnation) != (epoch, incarnation):
            return None
        count = len(self.files)
        return files[count:] if tuple(files[:count]) == self.files else None
