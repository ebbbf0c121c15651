"""One Kafka-to-Kafka job under test: its topics, its ledger, its watcher, its drivers."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from integration_tests.survival.kills import Kill
from integration_tests.survival.ledger import Ledger, Watcher, alter_topic, create_topic
from integration_tests.survival.process import Lives

KEYS = 400


@dataclass
class KafkaJob:
    """One job of a test. `seed` makes its data, and the draws of `random`."""

    servers: str
    store: Path
    output: str
    ledger: Ledger
    watcher: Watcher
    lives: Lives
    seed: int
    random: random.Random

    @classmethod
    def new(cls, servers: str, folder: Path, seed: int | None = None) -> Self:
        seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
        print(f"seed {seed}, logs in {folder}")
        source, output = create_topic(servers, "in"), create_topic(servers, "out")
        watcher = Watcher(servers, output)
        watcher.start()
        arguments = ["--servers", servers, "--input", source, "--output", output]
        arguments += ["--store", str(folder / "store"), "--local-dir", str(folder)]
        ledger = Ledger(servers, source, KEYS, seed)
        return cls(
            servers, folder / "store", output, ledger, watcher, Lives(folder, arguments), seed, random.Random(seed)
        )

    def live_and_die(self, kill: Kill, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        """Run a driver until the kill."""
        with self.lives.start(*arguments, environment={**kill.environment, **(environment or {})}) as driver:
            kill.strike(driver)
            assert driver.exit_code == -9, driver.log()

    def check_exact(self) -> None:
        """The output is one application of the input, for a reader at the end and for one that reads throughout."""
        self.ledger.check(self.output)
        self.check_watcher()

    def check_watcher(self) -> None:
        assert not self.watcher.anomalies, f"seed {self.seed}: {self.watcher.anomalies[:5]}"

    def close(self) -> None:
        self.lives.end()
        self.watcher.stop()

    def compact(self, topic: str) -> None:
        """Let the broker compact all records that the topic holds now."""
        alter_topic(self.servers, topic, COMPACTING)

    def stop_compaction(self, topic: str) -> None:
        """Keep the topic's records from now on."""
        alter_topic(self.servers, topic, {"cleanup.policy": "delete"})


COMPACTING = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "max.compaction.lag.ms": "100",
    "min.compaction.lag.ms": "0",
}
