"""An edge of another job passes the conformance suite for sources."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from sender_store import EDGE, SendingStore

import spark_ckpt as ckpt
from spark_ckpt.testing import PythonReading, SourceConformance, SourceSubject


class Restarted:
    """A sender whose store can be replaced by another at the same location."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sender = SendingStore(folder)

    def add(self) -> Sequence[dict[str, object]]:
        files = [self.sender.rows(2), self.sender.rows(3)]
        self.sender.commit(*files)
        self.sender.commit()
        return [row for file in files for row in file]

    def lose(self) -> None:
        """Delete the two epochs of the first `add`."""
        self.sender.retain(len(self.sender.store.log.state().by_id) - 2)

    def renew(self) -> None:
        number = self.sender.number
        shutil.rmtree(self.folder)
        self.sender = SendingStore(self.folder)
        self.sender.number = number


@pytest.mark.parametrize("files_per_batch", [1, 256])
class TestEdgeSource(SourceConformance):
    @pytest.fixture
    def subject(self, tmp_path: Path, files_per_batch: int) -> SourceSubject:
        sender = Restarted(tmp_path / "orders")
        return SourceSubject(
            make=lambda: ckpt.Edge(EDGE, str(tmp_path / "orders"), maxFilesPerTrigger=files_per_batch),
            add=sender.add,
            reading=PythonReading(),
            lose=sender.lose,
            renew=sender.renew,
        )
