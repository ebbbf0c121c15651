"""Frames for a function that is called key by key: an iterator of one frame, or one frame per named input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pandas as pd
import pyarrow as pa

from spark_ckpt.tasks.operators.named_inputs import NamedInput
from spark_ckpt.tasks.operators.pandas_rows import FrameSlices, PandasOptions, rows_of, to_frame
from spark_ckpt.tasks.rows import Int64s, rows_at, user_columns

KeyFrames = Iterable[pd.DataFrame] | Mapping[str, pd.DataFrame]
"""Argument of the function for one key."""


class FramesOf(Protocol):
    """Conversion of an operator's rows into its function's frames."""

    def of(self, rows: pa.Table, row_key: Int64s, options: PandasOptions) -> Callable[[int], KeyFrames]:
        """Return a function from the number of a key to its frames.

        `row_key[i]` is the key of row i; every key has a row.
        """

    def of_none(self, options: PandasOptions) -> Callable[[int], KeyFrames]:
        """Return the same for keys without rows, whose timeout has passed."""


@dataclass(frozen=True, slots=True)
class OneInput:
    """Spark's form: an iterator of one frame. Without rows the frame has only the names `columns`."""

    columns: tuple[str, ...]

    def of(self, rows: pa.Table, row_key: Int64s, options: PandasOptions) -> Callable[[int], KeyFrames]:
        """See `FramesOf`."""
        slices = _slices(user_columns(rows), row_key, options)
        # A generator: the frame is made when the function asks for it, and lives no longer than its call.
        return lambda key: (slices.frame(key) for _ in (0,))

    def of_none(self, options: PandasOptions) -> Callable[[int], KeyFrames]:
        """See `FramesOf`."""
        return lambda key: [pd.DataFrame(columns=list(self.columns))]


@dataclass(frozen=True, slots=True)
class FramesByInput:
    """A mapping from input name to the key's rows, in order of arrival. An input without rows gives an empty frame."""

    inputs: tuple[NamedInput, ...]

    def of(self, rows: pa.Table, row_key: Int64s, options: PandasOptions) -> Callable[[int], KeyFrames]:
        """See `FramesOf`."""
        found = {each.name: each.rows_of(rows) for each in self.inputs}
        frames = {name: _InputFrames(own, row_key[at], options) for name, (own, at) in found.items()}
        return lambda key: _OfOneKey(frames, key)

    def of_none(self, options: PandasOptions) -> Callable[[int], KeyFrames]:
        """See `FramesOf`."""
        none = np.empty(0, np.int64)
        frames = {each.name: _InputFrames(each.schema.empty_table(), none, options) for each in self.inputs}
        return lambda key: _OfOneKey(frames, key)


class _InputFrames:
    """One input's frames. `row_key[i]` is the key of its row i; some keys may have no row."""

    def __init__(self, rows: pa.Table, row_key: Int64s, options: PandasOptions) -> None:
        # Numbered again without gaps: only keys with rows of this input have a slice.
        keys, dense = np.unique(row_key, return_inverse=True)
        self._place = dict(zip(keys.tolist(), range(len(keys)), strict=True))
        self._slices = _slices(rows, dense, options)
        self._empty = to_frame(rows.slice(0, 0), options)

    def frame(self, key: int) -> pd.DataFrame:
        """Return the key's frame; the caller may change it."""
        place = self._place.get(key)
        return rows_of(self._empty, 0, 0) if place is None else self._slices.frame(place)


class _OfOneKey(Mapping[str, pd.DataFrame]):
    """Frames by input, made at first access."""

    __slots__ = ("_frames", "_key", "_made")

    def __init__(self, frames: Mapping[str, _InputFrames], key: int) -> None:
        self._frames = frames
        self._key = key
        self._made: dict[str, pd.DataFrame] = {}

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name not in self._made:
            if name not in self._frames:
                raise KeyError(f"there is no input {name!r}; there are {', '.join(self._frames)}")
            self._made[name] = self._frames[name].frame(self._key)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._frames)

    def __len__(self) -> int:
        return len(self._frames)


def _slices(rows: pa.Table, row_key: Sequence[int] | Int64s, options: PandasOptions) -> FrameSlices:
    order = np.argsort(row_key, kind="stable")
    ends = np.cumsum(np.bincount(row_key))
    starts = np.r_[0, ends[:-1]] if len(ends) else ends
    return FrameSlices(rows_at(rows, order), starts, ends, options)
