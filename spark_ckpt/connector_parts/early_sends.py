"""Rows of an early send, and the rule for their use: all of them or none.

An open transaction counts as a prefix of an epoch's output under one condition. It was filled for this epoch, in this
incarnation, with exactly the files that the output begins with. In all other cases, and in doubt, it is aborted and the
staged files are sent. Within an incarnation no number is given to two epochs, so number and incarnation identify the
attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

File = TypeVar("File")


@dataclass(frozen=True, slots=True)
class SentEarly(Generic[File]):
    """Files whose rows an open transaction holds, in order. Files are compared by value: path, size, digest."""

    epoch: int
    incarnation: int
    files: tuple[File, ...] = ()

    def rest_of(self, epoch: int, incarnation: int, files: Sequence[File]) -> Sequence[File] | None:
        """Return the epoch's files that the transaction lacks.

        Return None if it is no prefix of them and must be aborted.
        """
        if (self.epoch, self.incarnation) != (epoch, incarnation):
            return None
        count = len(self.files)
        return files[count:] if tuple(files[:count]) == self.files else None
