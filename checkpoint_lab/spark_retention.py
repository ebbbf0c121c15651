"""Retention as a driver does it behind an epoch, in steps between which anything may happen: the shipped rules on shared files.

First the log forgets epochs; then, table by table, it is looked at what the kept epochs need, and later what nobody needs goes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from checkpoint_lab.spark_rows import EDGES, OPERATORS, SINKS
from checkpoint_lab.spark_store import Shared
from spark_ckpt.errors import CkptError, Fenced
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.records import Manifest
from spark_ckpt.store.retention import Retention, garbage, kept_epochs, segments, staged_files, state_files

POLICY = Retention(keep_last=2, slack=0)
NOW_MS = 2
"""Behind every epoch: none is young."""

Named = Callable[[Iterable[Manifest], str], set[str]]
"""The files of a table that some manifests need."""
TABLES: Sequence[tuple[str, str, Named]] = (
    *((sink, f"ckpt-{sink}", staged_files) for sink in SINKS),
    *((operator, operator, state_files) for operator in OPERATORS),
    *((edge, f"ckpt-{edge}", segments) for edge in EDGES),
)
"""Names, what precedes the incarnation in the names of their files, and what manifests need of them."""


@dataclass
class Sweeper:
    """One driver's. `due`: an epoch was settled. `doomed`: files that it has judged and not yet deleted."""

    shared: Shared
    log: EpochLog
    due: bool = False
    tables: deque[tuple[str, str, Named]] = field(default_factory=deque)
    dropped: list[Manifest] = field(default_factory=list)
    doomed: list[str] = field(default_factory=list)

    @property
    def busy(self) -> bool:
        """There is a next step."""
        return self.due or bool(self.tables or self.doomed)

    def step(self) -> int:
        """The next one; how many epochs it has forgotten, or files it has deleted. Raises `Fenced`."""
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
        self.doomed = garbage(self.shared.files(), prefix, named(kept, name), named(self.dropped, name), own)


def swept(sweeper: Sweeper) -> tuple[int, CkptError | None]:
    """One step, and what ends the driver if it could not be done."""
    try:
        return sweeper.step(), None
    except Fenced as error:
        return 0, error
