"""The sender's epoch log as a reader of one of its edges sees it: positions, files, and what is wrong with a position."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import wraps
from itertools import takewhile
from typing import ParamSpec, TypeVar

from pydantic import ValidationError

from spark_ckpt.connector import Cursor, StagedFile
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.readers import Standing, reached_index, read_stamp, standing, unread
from spark_ckpt.epochs.records import EpochBrief, Position
from spark_ckpt.errors import EpochNotFound, RowsLost, SourceInvalid, SourceUndone, StoreForeign
from spark_ckpt.program_edges.segments import EdgeFile
from spark_ckpt.store.existing import existing_store
from spark_ckpt.store.store import Store

_ATTEMPTS = 5
_P = ParamSpec("_P")
_T = TypeVar("_T")


def position_of(cursor: Cursor) -> Position:
    """Return the position of a cursor. Raises `SourceInvalid` for a cursor of another source."""
    try:
        return Position.model_validate(dict(cursor))
    except ValidationError as error:
        raise SourceInvalid(
            "this is not a position on an edge between jobs",
            cursor=str(dict(cursor))[:200],
            hint="keep each source's name in the program",
        ) from error


def _repeat_if_deleted(read: Callable[_P, _T]) -> Callable[_P, _T]:
    """Repeat a read of the sender's log whose epoch the sender has deleted since the log was read."""

    # The oldest kept epoch is read each time if the edge is idle, and it is the one that retention deletes next.
    @wraps(read)
    def repeated(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        for _ in range(_ATTEMPTS - 1):
            with suppress(EpochNotFound):
                return read(*args, **kwargs)
        try:
            return read(*args, **kwargs)
        except EpochNotFound as error:
            raise SourceInvalid(
                f"the sender deletes its epochs while they are read: {error.what}", hint="start the job again"
            ) from error

    return repeated


class EdgeLog:
    """Follows one edge of the job in `store`. Every call reads the log again."""

    def __init__(self, store: Store, edge: str) -> None:
        self.store = store
        self._edge = edge
        self._files: dict[str, tuple[StagedFile, ...]] = {}  # by attempt: an epoch's files never change

    @classmethod
    def open(cls, uri: str, edge: str, job: str | None, storage_options: Mapping[str, str]) -> EdgeLog:
        """Open the sender's store. Raises `SourceInvalid` if it is missing, of another owner, or has no such edge."""
        try:
            store = existing_store(uri, storage_options)
        except StoreForeign as error:
            raise SourceInvalid(
                f"there is no store of a job at {uri}",
                hint="check the path; the sending job creates its store when it starts",
            ) from error
        owner = store.log.state()
        if owner.kind != "job":
            raise SourceInvalid(
                f"{uri} is the store of the outbox '{owner.job}', whose sinks have its rows",
                hint="read the table or topic that the outbox writes; edges are between jobs",
            )
        if job is not None and owner.job != job:
            raise SourceInvalid(
                f"{uri} is the store of job '{owner.job}', not of '{job}'",
                hint="name the sending job and its store in ckpt.Edge",
            )
        edges = store.published_edges()
        if edge not in edges:
            there = ", ".join(sorted(edges)) or "none"
            raise SourceInvalid(
                f"job '{owner.job}' has no edge '{edge}'; its edges: {there}",
                hint=f'end a stream of that job with to(ckpt.Edge("{edge}")), and start it',
            )
        return cls(store, edge)

    @_repeat_if_deleted
    def end(self) -> Position:
        """Return the position after everything that the sender has committed."""
        # The newest epoch with rows of the edge, and not the newest one: a position never passes an epoch without rows.
        log_state = self.store.log.state()
        return (
            self._after(self.store.log.manifest(log_state.latest).rows_so_far.get(self._edge, 0))
            if log_state.latest
            else Position()
        )

    @_repeat_if_deleted
    def beginning(self) -> Position:
        """Return the position before the oldest rows that the sender keeps on its current branch."""
        return self._beginning(self.store.log.state())

    @_repeat_if_deleted
    def require(self, position: Position) -> None:
        """Raise `SourceUndone` if the sender restored an epoch before the position, `RowsLost` if rows after it are gone."""
        self._state_at(position)

    def _state_at(self, position: Position) -> LogState:
        """Return the state of the log, in which the position is current. Raises as `require`."""
        log_state = self.store.log.state()
        where = {"edge": self._edge, "sender": self.store.location.uri, "epoch": position.epoch}
        match standing(log_state, position, self._rows_before):
            case Standing.UNDONE:
                raise SourceUndone(
                    f"job '{log_state.job}' has restored an older epoch: its epoch {position.epoch}, whose rows this job has"
                    " read, is undone",
                    hint="restore this job to an epoch that has read nothing of it",
                    **where,
                )
            case Standing.GONE:
                raise RowsLost(
                    f"job '{log_state.job}' has deleted rows of edge '{self._edge}' after epoch {position.epoch}, which this"
                    " job has not read",
                    hint="a reader that is away for longer than the sender's setting keep_for_readers loses them: raise it",
                    **where,
                )
        return log_state

    @_repeat_if_deleted
    def past_lost(self, position: Position) -> Position:
        """Return the oldest position whose rows are all kept, if rows after `position` are gone; else `position`."""
        log_state = self.store.log.state()
        gone = standing(log_state, position, self._rows_before) is Standing.GONE
        return self._beginning(log_state) if gone else position

    @_repeat_if_deleted
    def is_current(self, position: Position) -> bool:
        """Return True if every row after the position can be read."""
        return standing(self.store.log.state(), position, self._rows_before) is Standing.CURRENT

    @_repeat_if_deleted
    def next_end(
        self,
        start: Position,
        files: int | None,
        size: int | None,
        last: Position | None,
        lets_in: Callable[[int], bool] = lambda stamp: True,
    ) -> Position:
        """Return the end of a batch that begins at `start`: at least one file if there is any, whole files.

        - `files`, `size`: limits in files and bytes; None for no limit.
        - `last`: position that the batch does not go beyond.
        - `lets_in`: function from the stamp of an epoch's rows to True if they may be read now.
        """
        end, taken, weight = start, 0, 0
        for after, file in self._unread(start, lets_in):
            taken, weight = taken + 1, weight + file.size
            beyond = last is not None and _key(after) > _key(last)
            # One file at least: a file above the limit would never be read otherwise.
            full = taken > 1 and ((files is not None and taken > files) or (size is not None and weight > size))
            if beyond or full:
                break
            end = after
        return end

    @_repeat_if_deleted
    def between(self, start: Position, end: Position) -> list[EdgeFile]:
        """Return the files between two positions, in order. Raises as `require`."""
        self._state_at(end)
        # Not by stamps: a batch that runs again gets the same files, wherever the index is by then.
        return [file for _, file in takewhile(lambda each: _key(each[0]) <= _key(end), self._unread(start))]

    @_repeat_if_deleted
    def reached(self, position: Position) -> int:
        """Return the index up to which everything before `position` is read, as `epochs.readers.reached_index`."""
        log_state = self._state_at(position)
        self._forget_before(position, log_state)
        return reached_index(log_state, self._edge, position, lambda brief: bool(self._staged(brief)))

    @_repeat_if_deleted
    def read_stamp(self, position: Position) -> int:
        """Return the stamp of the newest rows before `position`; 0 for none, or if the sender's log has forgotten it."""
        return read_stamp(self._state_at(position), position) or 0

    def index(self) -> int:
        """Return the newest index of the sender; 0 if it runs without `protocol="index"`."""
        return self.store.log.state().index

    def stamp(self) -> int:
        """Return the newest index that the sender has served; its next rows have it as their stamp."""
        return self.store.log.state().stamp

    def _unread(
        self, start: Position, lets_in: Callable[[int], bool] = lambda stamp: True
    ) -> Iterator[tuple[Position, EdgeFile]]:
        """Yield every file after `start` with the position right after it, up to the first epoch that may not come in."""
        log_state = self._state_at(start)
        self._forget_before(start, log_state)
        for brief in unread(log_state, self._edge, start):
            if not lets_in(brief.after):
                return
            files = self._staged(brief)
            # A batch may have ended within this epoch, at a limit of files or bytes.
            begun = start.files if brief.epoch == start.epoch else 0
            for number, file in list(enumerate(files, 1))[begun:]:
                here = Position(epoch=brief.epoch, attempt=brief.attempt, files=number, of=len(files))
                yield here, EdgeFile(brief.epoch, file)

    def _beginning(self, log_state: LogState) -> Position:
        oldest = list(log_state.lineage())[-1:]
        # After the newest epoch whose rows are gone: an older position would be one that lacks rows.
        return Position(epoch=self._rows_before(oldest[0].epoch)) if oldest else Position()

    def _after(self, epoch: int) -> Position:
        brief = self.store.log.state().by_id.get(epoch)
        if brief is None:
            return Position(epoch=epoch)
        files = len(self._staged(brief))
        return Position(epoch=epoch, attempt=brief.attempt, files=files, of=files)

    def _staged(self, brief: EpochBrief) -> tuple[StagedFile, ...]:
        known = self._files.get(brief.attempt)
        if known is None:
            # An earlier sink of this name may have staged elsewhere; those files are not the edge's.
            manifest = self.store.log.manifest(brief.epoch)
            known = self._files[brief.attempt] = self.store.staged(self._edge).staged(manifest)
        return known

    def _forget_before(self, start: Position, log_state: LogState) -> None:
        # A reader that runs for months needs none of the epochs that it has read.
        kept = {brief.attempt for brief in log_state.by_id.values() if brief.epoch >= start.epoch}
        self._files = {attempt: files for attempt, files in self._files.items() if attempt in kept}

    def _rows_before(self, epoch: int) -> int:
        return self.store.log.manifest(epoch).rows_before.get(self._edge, 0)


def _key(position: Position) -> tuple[int, int]:
    """Order of positions of one lineage."""
    return position.epoch, position.files
