"""Deferred rows: a sink with `publish_every` gets the rows of several epochs in one publish.

Deferred rows are part of the epoch, like rows in flight on an edge. The manifest names their files. An incarnation
that continues from the epoch publishes them with a later epoch, before its own rows. So the unpublished-epoch logic
needs no change: a sink must publish an epoch if the epoch has an output for it. The output contains everything since
the previous output.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from spark_ckpt.connector import StagedFile
from spark_ckpt.coordination.job_shape import SinkPlace
from spark_ckpt.epochs.records import Manifest, Reason, StagedOutput

Outputs = Mapping[str, StagedOutput]
"""Staged output by sink."""


class Holding:
    """Deferred rows of one incarnation.

    Its first epoch publishes everything: no clock tells when the previous incarnation published last.
    """

    def __init__(self, sinks: Mapping[str, SinkPlace], base: Manifest) -> None:
        self._every_ms = {name: place.publish_every_ms for name, place in sinks.items()}
        self._due_ms = dict.fromkeys(sinks, -math.inf)
        self._held: Outputs = base.held

    def divided(
        self, staged: Outputs, reason: Reason, now_ms: float
    ) -> tuple[dict[str, StagedOutput], dict[str, StagedOutput]]:
        """Split an epoch's rows into outputs to publish now and rows to defer, both by sink.

        `staged`: rows of every sink since the previous epoch. `reason`: what triggered the epoch. Two kinds of epochs
        defer rows: those that the interval triggered, and initial ones, which only pin the start of new sources. A
        savepoint or a final epoch publishes everything.
        """
        outputs: dict[str, StagedOutput] = {}
        held: dict[str, StagedOutput] = {}
        for sink, own in staged.items():
            whole = _joined(self._held.get(sink), own)
            # An initial epoch has no rows of its own: it only carries earlier deferred rows on.
            waits = bool(whole.files) if reason == "initial" else reason == "interval" and now_ms < self._due_ms[sink]
            (held if waits else outputs)[sink] = whole
        return outputs, held

    def decided(self, manifest: Manifest, now_ms: float) -> None:
        """Apply a committed epoch: the publish interval of each sink in it starts at the commit."""
        self._held = manifest.held
        # An initial epoch publishes no rows, so it does not start the interval.
        if manifest.reason != "initial":
            self._due_ms |= {sink: now_ms + self._every_ms[sink] for sink in manifest.outputs if sink in self._every_ms}

    def in_front(self, sink: str) -> list[StagedFile]:
        """Return the sink's deferred files, which precede its next ones."""
        held = self._held.get(sink)
        return [file.staged_file() for file in held.files] if held else []

    def due_in_ms(self, now_ms: float) -> float | None:
        """Return the milliseconds until deferred rows are due: 0 if they are due now, None if there are none."""
        sinks = [sink for sink, output in self._held.items() if output.files and sink in self._due_ms]
        waits = [max(0.0, self._due_ms[sink] - now_ms) for sink in sinks]
        return min(waits, default=None)


def _joined(held: StagedOutput | None, own: StagedOutput) -> StagedOutput:
    if held is None:
        return own
    return own.model_copy(update={"files": (*held.files, *own.files), "rows": held.rows + own.rows})
