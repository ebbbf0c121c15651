"""Retention of a driver after an epoch, in steps between which anything may happen: the shipped rules on shared files.

First the log drops epochs. Then each table in turn is compared with the files that the kept epochs need, and the rest
is deleted later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from checkpoint_lab.spark_rows import EDGES, OPERATORS, SINKS
from checkpoint_lab.spark_store import Shared
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.epochs.retention import Retention, garbage, kept_epochs, segments, staged_files, state_files
from spark_ckpt.errors import CkptError, Fenced
from spark_ckpt.store.epoch_log import EpochLog

POLICY = Retention(keep_last=2, slack=0)
NOW_MS = 2
"""Time later than every epoch, in ms: none is young."""

Named = Callable[[Iterable[Manifest], str], set[str]]
"""A function from manifests to the files of a table that they need."""
TABLES: Sequence[tuple[str, str, Named]] = (
    *((sink, f"ckpt-{sink}", staged_files) for sink in SINKS),
    *((operator, operator, state_files) for operator in OPERATORS),
    *((edge, f"ckpt-{edge}", segments) for edge in EDGES),
)
"""Name of each table, prefix of the incarnation in its file names, and the files that manifests need of it."""


@dataclass
class Sweeper:
    """Retention of one driver. `due`: an epoch was settled. `doomed`: files judged as garbage and not deleted yet."""

    shared: Shared
    log: EpochLog
    due: bool = False
    tables: deque[tuple[str, str, Named]] = field(default_factory=deque)
    dropped: list[Manifest] = field(default_factory=list)
    doomed: list[str] = field(default_factory=list)

    @property
    def busy(self) -> bool:
        """True if there is a next step."""
        return self.due or bool(self.tables or self.doomed)

    def step(self) -> int:
        """Perform the next step. Return the number of dropped epochs or deleted files. Raises `Fenced`."""
        if self.doomed:
            doomed, self.doomed = self.doomed, []
            self.shared.remove(doomed)
            return len(doomed)
        if self.tables:
            self._judge(*self.tables.popleft())
            return 0
        return self._forget()

    def _forget(self) -> int:
        self.due = False
        _, dropped = self.log.shorten(lambda log_state: kept_epochs(log_state, POLICY, NOW_MS))
        if dropped:
            self.dropped, self.tables = dropped, deque(TABLES)
        return len(dropped)

    def _judge(self, name: str, prefix: str, named: Named) -> None:
        kept = [self.log.manifest(brief.epoch) for brief in self.log.state().epochs]
        own = self.log.own_incarnation or 0
        # judged now and deleted in a later step: new epochs may come in between
        self.doomed = garbage(self.shared.files(), prefix, named(kept, name), named(self.dropped, name), own)


def swept(sweeper: Sweeper) -> tuple[int, CkptError | None]:
    """Perform one step. Return its count, and the error that ends the driver, if any."""
    try:
        return sweeper.step(), None
    except Fenced as error:
        return 0, error
