"""Simulated drivers on Spark, recorded line by line like real ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from checkpoint_lab.spark_driver import CoreOf, shipped
from checkpoint_protocols.machine import Effect, Event
from spark_ckpt.coordination.job_shape import JobShape
from spark_ckpt.coordination.protocol import EpochProtocol
from spark_ckpt.epochs.identity import Standing
from spark_ckpt.epochs.restore import LATEST, RecoveryPoint
from spark_ckpt.trace.lines import Begun, handled
from spark_ckpt.trace.reading import Recorded, recorded_of
from spark_ckpt.trace.recorder import file_of


class Recording:
    """Makes the rules of incarnations for a simulated world, and records their events and effects."""

    def __init__(self, core_of: CoreOf | None = None) -> None:
        self._core_of = core_of or shipped
        self._texts: dict[int, list[str]] = {}

    def core_of(
        self, shape: JobShape, point: RecoveryPoint, acked: Mapping[str, int], standing: Standing
    ) -> EpochProtocol:
        core = self._core_of(shape, point, acked, standing)
        if point.restored_from != LATEST:  # a trial on a copy of the store, see `spark_restores.py`
            return core
        texts = self._texts[point.incarnation] = [Begun.of(shape, point, standing, acked).text()]
        handle = core.handle

        def recorded(event: Event, now_ms: float) -> list[Effect]:
            effects = handle(event, now_ms)
            texts.append(handled(event, now_ms, effects).text())
            return effects

        core.handle = recorded  # type: ignore[method-assign]
        return core

    def traces(self) -> list[Recorded]:
        """The recorded traces, read again."""
        return [whole(incarnation, texts) for incarnation, texts in sorted(self._texts.items())]

    def write(self, folder: Path) -> None:
        """Write the traces as drivers do."""
        folder.mkdir()
        for incarnation, texts in self._texts.items():
            file_of(folder, "job", incarnation).write_text("".join(text + "\n" for text in texts))


def whole(incarnation: int, texts: list[str]) -> Recorded:
    """The trace of an incarnation from its lines."""
    found = recorded_of(f"i{incarnation}", "".join(text + "\n" for text in texts).encode())
    assert found is not None
    return found
