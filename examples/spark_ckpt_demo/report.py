"""Results of the demo, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from spark_ckpt.connector import Json
from spark_ckpt_demo.oracle import Comparison


@dataclass(frozen=True, slots=True)
class Killed:
    """The kill: the driver's process, committed epochs with their flights, and rows that a reader saw afterwards."""

    pid: int
    exit_code: int
    epochs: int
    flights: int
    visible: int


@dataclass(slots=True)
class Report:
    """Results, filled while the demo runs."""

    flights: int = 0
    killed: Killed | None = None
    lives: int = 0
    restored_epoch: int = 0
    newest_epoch: int = 0
    checks: dict[str, Comparison] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    folder: str | None = None

    @property
    def exact(self) -> bool:
        """True if every check was made and holds."""
        return bool(self.checks) and all(check.exact for check in self.checks.values())

    def fields(self) -> dict[str, Json]:
        """Return the fields of `demo --json`."""
        checks: Mapping[str, Json] = {
            name: {**asdict(check), "exact": check.exact} for name, check in self.checks.items()
        }
        return {
            "exact": self.exact,
            "flights": self.flights,
            "killed": asdict(self.killed) if self.killed else None,
            "lives": self.lives,
            "newest_epoch": self.newest_epoch,
            "restored_epoch": self.restored_epoch,
            "checks": checks,
            "seconds": {name: round(value, 1) for name, value in self.seconds.items()},
            "folder": self.folder,
        }
