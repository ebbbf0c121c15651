"""The rows that a sink publishes for one committed epoch, with everything that its marker is compared with. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from checkpoint_protocols.ids import Epoch, Incarnation
from spark_ckpt.connector import EpochOutput
from spark_ckpt.epochs.identity import Standing
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.epochs.restore import RecoveryPoint


class StagedAt(Protocol):
    """Place of a sink's staged files."""

    @property
    def root(self) -> str:
        """URI of the folder."""

    @property
    def storage_options(self) -> Mapping[str, str]:
        """Options for an object store."""


@dataclass(frozen=True, slots=True)
class StagingPlace:
    """Place of a sink's staged files: `root`, a URI. `in_store`: it is the sink's folder in the store."""

    root: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    in_store: bool = True

    @property
    def recorded_root(self) -> str:
        """The root as a manifest records it; empty for the store."""
        return "" if self.in_store else self.root


def epoch_output(
    manifest: Manifest, sink: str, place: StagedAt, point: RecoveryPoint, standing: Standing, acked: int, newest: int
) -> EpochOutput:
    """Return the rows that `sink` must publish for the committed epoch of `manifest`.

    - `point`, `standing`: the start of the incarnation that publishes.
    - `acked`: newest epoch that the sink has acknowledged; 0 if none.
    - `newest`: highest epoch ever committed.
    """
    staged = manifest.outputs.get(sink)
    # A sink that replaced another one has none of the epochs published before.
    previous, begun_after = standing.published(sink, acked)
    return EpochOutput(
        epoch=Epoch(manifest.epoch),
        incarnation=Incarnation(point.incarnation),
        previous=Epoch(previous),
        root=place.root,
        storage_options=place.storage_options,
        files=staged.files if staged else (),
        acked=Epoch(previous),
        dropped=tuple(Epoch(each) for each in point.dropped.get(sink, ())),
        newest=Epoch(newest),
        decision=manifest.attempt,  # tells this epoch from one that a log which was lost has committed under its number
        begun_after=None if begun_after is None else Epoch(begun_after),
        # Only epochs that were unpublished at the start have any: later ids are above all others.
        diverged=tuple(Epoch(each) for each in point.diverged.get(manifest.epoch, ())),
        rows_before=standing.rows_before(sink, manifest),
        replaces=staged is not None and staged.replaces,
    )
