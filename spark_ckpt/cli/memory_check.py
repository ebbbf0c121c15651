"""Checks the files that sources keep in the store (`sources/<name>`), without the job's program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

from spark_ckpt import connectors
from spark_ckpt.connector import ChecksMemory
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.errors import CkptError, ConnectorBroken, ConnectorTooNew, ConnectorUnknown
from spark_ckpt.store.store import Store

FOLDER = "sources"
_EDGE = "edge"
"""Kind of the core's own source, which keeps an id there and nothing to check."""


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Result of a check.

    `damage`: by epoch and source, the error that a start from that epoch raises. `unchecked`: sources with files in the
    store that no installed connector can check.
    """

    damage: dict[int, dict[str, CkptError]] = field(default_factory=dict)
    unchecked: list[str] = field(default_factory=list)


def check_memory(store: Store, manifests: Sequence[Manifest]) -> MemoryReport:
    """Read every source file in the store that a start from one of these epochs reads, and return the damage."""
    report = MemoryReport()
    for source in sorted({name for manifest in manifests for name in manifest.cursors}):
        own = [manifest for manifest in manifests if source in manifest.cursors]
        folder = store.location.child(FOLDER, source)
        # Another connector may have read the source at an older epoch.
        kinds = {manifest.epoch: manifest.source_identities.get(source, {}).get("kind", "") for manifest in own}
        checkers = {kind: _checker(kind) for kind in set(kinds.values())}
        unknown = {kind for kind, checker in checkers.items() if checker is None} - {_EDGE}
        # A source that keeps no files in the store needs no check.
        if unknown and folder.entries():
            report.unchecked.append(source)
        for kind, checker in checkers.items():
            if checker is None:
                continue
            epochs = [manifest for manifest in own if kinds[manifest.epoch] == kind]
            found = checker.memory_damage(folder, [manifest.cursors[source] for manifest in epochs])
            for manifest, error in zip(epochs, found, strict=True):
                if error is not None:
                    report.damage.setdefault(manifest.epoch, {})[source] = error
    return report


def damage_text(found: Iterable[tuple[str, CkptError]]) -> str | None:
    """Return the damage, source by source, as one line; None if there is none."""
    return "; ".join(f"source {source}: {error.what}" for source, error in sorted(found)) or None


def _checker(kind: str) -> type[ChecksMemory] | None:
    """Return the source class of this endpoint kind; None if its connector is not installed or has nothing to check."""
    try:
        sources = connectors.named(kind).sources()
    except (ConnectorUnknown, ConnectorBroken, ConnectorTooNew):
        return None
    return next((cast("type[ChecksMemory]", each) for each in sources if hasattr(each, "memory_damage")), None)
