"""Trials of one kind: scenes in turn, each drawn from its own seed, judged, and recorded."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from integration_tests.broker import Broker
from integration_tests.campaign.hazards.site import Site, site_of
from integration_tests.campaign.hazards.verdicts import Scene, judged
from integration_tests.campaign.trial import Results

Drawn = Callable[[Site, Path, random.Random], Scene]
"""Draw a scene in its own folder."""


def tried(scenes: Sequence[Drawn], site: Site, seed: int, results: Results) -> None:
    """Run one trial. The seed selects the scene and draws its details, so `--trials 1 --seed SEED` repeats the trial."""
    draw = random.Random(seed)
    scene = scenes[seed % len(scenes)](site, site.fresh(), draw)
    began = time.monotonic()
    try:
        judgement = judged(scene, draw)
    finally:
        for query in site.spark.streams.active:
            query.stop()
        scene.close()
    kind = f"{scene.kind}: {judgement.verdict.value}"
    print(f"  {time.monotonic() - began:.0f} s {kind} {judgement.followed}", flush=True)
    results.add(scene.kind, judgement.figures, judgement.why[:2500], seed)


def with_broker(scenes: Sequence[Drawn]) -> Callable[[Broker, Path, int, int, Results], None]:
    """A campaign whose scenes need a broker."""

    def campaign(broker: Broker, folder: Path, trials: int, seed: int, results: Results) -> None:
        with site_of(folder, broker.servers) as site:
            for number in range(trials):
                tried(scenes, site, seed + number, results)

    return campaign


def without_broker(scenes: Sequence[Drawn]) -> Callable[[Path, int, int, Results], None]:
    """A campaign of files and tables."""

    def campaign(folder: Path, trials: int, seed: int, results: Results) -> None:
        with site_of(folder) as site:
            for number in range(trials):
                tried(scenes, site, seed + number, results)

    return campaign
