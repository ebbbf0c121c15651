"""Which sinks' rows an epoch holds back: a sink that dislikes small commits gets the rows of several epochs with one.

Rows that are held back are part of the cut, as rows in flight on an edge are: an epoch that holds rows names their files, and
whoever goes on from it publishes them with a later epoch, in front of that one's own. So nothing else needs to know of them: a sink
is owed an epoch if the epoch has an output for it, and that is everything since the output before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from spark_ckpt.connector import StagedFile
from spark_ckpt.coordination.job_shape import SinkPlace
from spark_ckpt.store.records import Manifest, Reason, StagedOutput

Outputs = Mapping[str, StagedOutput]


class Holding:
    """One incarnation's books. Its first epoch publishes everything: when the incarnation before published last, no clock knows."""

    def __init__(self, sinks: Mapping[str, SinkPlace], base: Manifest) -> None:
        self._every_ms = {name: place.publish_every_ms for name, place in sinks.items()}
        self._due_ms = dict.fromkeys(sinks, -math.inf)
        self._held: Outputs = base.held

    def divided(
        self, staged: Outputs, reason: Reason, now_ms: float
    ) -> tuple[dict[str, StagedOutput], dict[str, StagedOutput]]:
        """An epoch's outputs, and what it holds back. `staged`: what every sink got since the epoch before it.

        Only epochs that the clock asked for hold something back, and those that only pin where new sources start. At a savepoint
        or a final epoch every sink gets everything.
        """
        outputs: dict[str, StagedOutput] = {}
        held: dict[str, StagedOutput] = {}
        for sink, own in staged.items():
            whole = _joined(self._held.get(sink), own)
            waits = bool(whole.files) if reason == "initial" else reason == "interval" and now_ms < self._due_ms[sink]
            (held if waits else outputs)[sink] = whole
        return outputs, held

    def decided(self, manifest: Manifest, now_ms: float) -> None:
        """The epoch is in the log. Until its next publish is due a sink waits from the decision on."""
        self._held = manifest.held
        if manifest.reason != "initial":
            self._due_ms |= {sink: now_ms + self._every_ms[sink] for sink in manifest.outputs if sink in self._every_ms}

    def in_front(self, sink: str) -> list[StagedFile]:
        """Files that go in front of the sink's next ones, once they are due."""
        held = self._held.get(sink)
        return [file.staged_file() for file in held.files] if held else []

    def due_in_ms(self, now_ms: float) -> float | None:
        """How long until rows that are held back are due: 0 if they are; None if there are none."""
        sinks = [sink for sink, output in self._held.items() if output.files and sink in self._due_ms]
        waits = [max(0.0, self._due_ms[sink] - now_ms) for sink in sinks]
        return min(waits, default=None)


def _joined(held: StagedOutput | None, own: StagedOutput) -> StagedOutput:
    if held is None:
        return own
    return own.model_copy(update={"files": (*held.files, *own.files), "rows": held.rows + own.rows})
