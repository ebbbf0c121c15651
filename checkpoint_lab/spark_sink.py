"""A transactional sink as the connector contract promises it: rows and marker in one transaction, and a fence.

The shipped rules judge its marker (`sink_rules.py`) and its early sends (`sent_early.py`). A publisher has a session,
like the epoch of a Kafka producer. Opening a session ends every older one, aborts its early sends, and refuses its
commit that is still under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from checkpoint_lab.spark_store import JOB, Row, Shared, by_key, in_order, in_the_end
from checkpoint_lab.violations import ensure
from spark_ckpt.connector import EpochOutput, SinkContext, StagedEarly, StagedFile
from spark_ckpt.connector_parts.early_sends import SentEarly
from spark_ckpt.connector_parts.sink_rules import SinkMarker, is_published, marker_of
from spark_ckpt.errors import EpochDamaged, Fenced, PublishFailed


@dataclass(frozen=True)
class LateTransaction:
    """A delayed commit and the rows that it makes visible."""

    session: int
    rows: tuple[Row, ...]
    output: EpochOutput


@dataclass
class SparkSink:
    """The state of a sink.

    `fence`: the newest incarnation that opened it. `session`: the session of its newest publisher.

    - `ahead`, `early_rows`: content of the open transaction, which no reader sees
    - `late`: a commit that has not arrived
    - `published_by`: the incarnation that published each epoch
    """

    name: str
    rows: list[Row] = field(default_factory=list)
    marker: SinkMarker | None = None
    fence: int = 0
    session: int = 0
    ahead: SentEarly[str] | None = None
    early_rows: list[Row] = field(default_factory=list)
    late: LateTransaction | None = None
    forgotten: SinkMarker | None = None
    """The lost marker, which an operator who looks at the sink's rows writes again."""
    published_by: dict[int, int] = field(default_factory=dict)

    def open(self, incarnation: int) -> int:
        """Open a publisher's session; abort the open transaction of every older one. Raises `Fenced`."""
        # the same incarnation may open again: a failed publish is tried in a new session
        if incarnation < self.fence:
            raise Fenced(f"{self.name} belongs to incarnation {self.fence}")
        self.fence = incarnation
        self.lose()
        return self.session

    def lose(self) -> None:
        """Abort the open transaction and fence its holder: it timed out, or a zombie initialised its id."""
        # A Kafka producer's epoch rises in this way: requests of the older session are refused even if they arrive later.
        self.session += 1
        self.late = None
        self.abort()

    def forget(self) -> None:
        """Lose the marker: it expires because no driver refreshes it."""
        self.forgotten, self.marker = self.marker, None

    def declare(self) -> bool:
        """Restore the lost marker, as an operator does. Return True if a marker was lost."""
        lost, self.forgotten = self.forgotten, None
        # a publish since the loss has written a newer one
        self.marker = self.marker or lost
        return lost is not None

    def abort(self) -> None:
        """Abort the rows of early sends."""
        self.ahead, self.early_rows = None, []

    def send_early(self, shared: Shared, staged: StagedEarly, how: str, session: int) -> int:
        """Send rows of an uncommitted epoch. `how`: "ok", "fail" (nothing sent) or "silent" (sent, unanswered)."""
        self._check(session)
        if how == "fail":
            raise PublishFailed(f"{self.name} is away")
        rest = self.rest_of(staged.epoch, staged.incarnation, staged.files)
        _missing(shared, rest, staged.epoch)
        rows = _rows_of(shared, rest)
        self.ahead = SentEarly(staged.epoch, staged.incarnation, tuple(file.path for file in staged.files))
        self.early_rows += rows
        if how == "silent":
            raise PublishFailed(f"{self.name} does not answer")
        return len(rows)

    def publish(self, shared: Shared, output: EpochOutput, how: str, session: int) -> tuple[int, bool]:
        """Publish an epoch in one transaction. Return the number of rows, and True if they were there before.

        `how`: "ok", "fail" (not done), "silent" (done, unanswered) or "late" (not done yet, unanswered). Raises the
        errors of a publisher.
        """
        had = self.had(shared, output)
        if had is not None:  # a look needs no session
            # its rows are visible already: a commit of those that were sent early would show them twice
            if session == self.session:
                self.abort()
            return had, True
        self._check(session)
        if how == "fail":
            raise PublishFailed(f"{self.name} is away")
        self.judge_published(shared, output)
        # for its check that no file is gone, before the open transaction changes
        self._rows(shared, output)
        rest = self.rest_of(output.epoch, output.incarnation, output.files)
        commit = LateTransaction(self.session, (*self.early_rows, *_rows_of(shared, rest)), output)
        if how == "late":
            self.late = commit
            raise PublishFailed(f"{self.name} does not answer in time")
        self.show(commit)
        if how == "silent":
            raise PublishFailed(f"{self.name} does not answer")
        return self._rows(shared, output), False

    def had(self, shared: Shared, output: EpochOutput) -> int | None:
        """Return the number of rows if the sink's marker says that it has the epoch, else None.

        As in the Kafka sink, a marker of this very commit is enough, from any incarnation.
        """
        marker = self.marker
        this = marker is not None and (marker.epoch, marker.decision) == (output.epoch, output.decision)
        has = this or is_published(marker, output, self._context(output))
        return self._rows(shared, output) if has else None

    def land(self) -> None:
        """Let the delayed commit arrive; a newer session refuses it."""
        late, self.late = self.late, None
        if late is not None and late.session == self.session:
            self.show(late)

    def judge(self, rows: int) -> None:
        """O14, O15: the sink shows a prefix of its expected rows, each row once and in order.

        `rows`: number of rows of each source.
        """
        for key, counts in by_key(self.rows).items():
            ensure(len(set(counts)) == len(counts), "O14", f"{self.name} shows {counts} for key {key}")
            wanted = list(range(1, len(counts) + 1))
            ensure(counts == wanted, "O15", f"{self.name} shows {counts} for key {key}")
        whole = in_the_end(rows).shown[self.name]
        for lane, numbers in in_order(row.name for row in self.rows).items():
            wanted = whole.get(lane, [])[: len(numbers)]
            ensure(numbers == wanted, "O15", f"{self.name} shows {numbers} of {lane}, expected {wanted}")

    def judge_shown(self, shared: Shared) -> None:
        """O11: the sink shows no row of an uncommitted epoch."""
        outputs = [each.outputs[self.name] for each in shared.manifests() if self.name in each.outputs]
        decided = sum(len(shared.staged[file.path]) for output in outputs for file in output.files)
        ensure(len(self.rows) <= decided, "O11", f"{self.name} shows {len(self.rows)} rows, {decided} are committed")

    def judge_announced(self, epoch: int, incarnation: int) -> None:
        """O6: no driver announces an epoch that the sink does not have, or that its successor has published."""
        # an operator may still have to write a lost marker again
        newest = max((marker.epoch for marker in (self.marker, self.forgotten) if marker), default=0)
        ensure(epoch <= newest, "O6", f"epoch {epoch} is announced, the newest of {self.name} is {newest}")
        # an epoch without rows may be covered by the marker of a later one
        by = self.published_by.get(epoch, incarnation)
        ensure(
            by <= incarnation,
            "O6",
            f"incarnation {incarnation} announces epoch {epoch}, which incarnation {by} has published to {self.name}",
        )

    def show(self, commit: LateTransaction) -> None:
        """Make the rows of a commit visible, with its marker."""
        self.rows += commit.rows
        self.published_by[commit.output.epoch] = commit.output.incarnation
        self.marker = marker_of(commit.output, self._context(commit.output))
        self.abort()

    def rest_of(self, epoch: int, incarnation: int, files: Sequence[StagedFile]) -> Sequence[StagedFile]:
        """Return the files that the open transaction lacks; abort a transaction that holds anything else."""
        sent = self.ahead
        rest = sent.rest_of(epoch, incarnation, [file.path for file in files]) if sent else None
        if rest is None:
            self.abort()
            return files
        # the open transaction holds a prefix of the files, in order
        return files[len(files) - len(rest) :]

    def _check(self, session: int) -> None:
        if session != self.session:
            raise PublishFailed(f"another publisher of {self.name} was opened")

    def _context(self, output: EpochOutput) -> SinkContext:
        return SinkContext(JOB, self.name, "store", output.incarnation)

    def judge_published(self, shared: Shared, output: EpochOutput) -> None:
        """O11: the published rows are exactly those that were committed."""
        decided = {each.epoch: each for each in shared.manifests()}.get(output.epoch)
        ensure(decided is not None, "O11", f"{self.name} shows epoch {output.epoch}, which is not committed")
        if decided is not None:
            mine = decided.outputs.get(self.name)
            wanted = [file.path for file in mine.files] if mine else []
            shown = [file.path for file in output.files]
            ensure(
                shown == wanted, "O11", f"{self.name} shows {shown} for epoch {output.epoch}, committed was {wanted}"
            )

    def _rows(self, shared: Shared, output: EpochOutput) -> int:
        _missing(shared, output.files, output.epoch)
        return len(_rows_of(shared, output.files))


def _missing(shared: Shared, files: Sequence[StagedFile], epoch: int) -> None:
    missing = [file.path for file in files if file.path not in shared.staged or file.path in shared.gone]
    if missing:
        raise EpochDamaged(f"{missing[0]} is missing", epoch=epoch)


def _rows_of(shared: Shared, files: Sequence[StagedFile]) -> list[Row]:
    return [row for file in files for row in shared.staged[file.path]]
