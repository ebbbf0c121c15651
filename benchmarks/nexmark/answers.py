"""Compares a query's output with its expected answer, from the output's records alone: independent of systems and operators.

A query's file has `expected(events)`, the rows of the answer. A running answer has a `KEY`; the last record of each key counts. If
the query allows several rows as the last one, `expected` has all of them, and one is due. `settled(found)` reduces an output with
more detail to the answer, such as sums over windows of the machine's clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json

from benchmarks.nexmark.events import Events
from benchmarks.side_by_side.oracle import Outputs, Progress, Verdict
from benchmarks.systems import job_module

_BLOCK = 200_000
_THOUSANDTHS = 1000


def judge(job: str, partitions: Sequence[Outputs], expected: pd.DataFrame) -> tuple[Verdict, Progress]:
    """Compare: every expected row must be present as often as expected. Progress is in records."""
    query = job_module(job)
    found = rows([outputs.values for outputs in partitions], query.COLUMNS)
    key = list(getattr(query, "KEY", ()))
    last = found.drop_duplicates(key, keep="last") if key else found
    settled = query.settled(last) if hasattr(query, "settled") else last
    duplicates, missing, wrong = _differences(settled, _due(settled, expected, key) if key else expected)
    progress = Progress(
        [each.offsets for each in partitions], [np.arange(1, len(each.offsets) + 1) for each in partitions]
    )
    return Verdict(len(found), duplicates, missing, wrong, reordered=0), progress


def rows(values: Sequence[pa.ChunkedArray], columns: dict[str, str]) -> pd.DataFrame:
    """Records of all partitions, one partition after another, as columns. Kinds: `long`; `text`; `time`, as ms since 1970;
    `thousandths`, of a decimal number.
    """
    schema = pa.schema([(name, _READ_AS[kind]) for name, kind in columns.items()])
    options = json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
    blocks = [json.read_json(pa.BufferReader(text), parse_options=options) for text in _blocks(values)]
    table = pa.concat_tables(blocks) if blocks else schema.empty_table()
    return pd.DataFrame({name: _column(table[name], kind) for name, kind in columns.items()})


_READ_AS = {"long": pa.int64(), "text": pa.string(), "time": pa.string(), "thousandths": pa.float64()}


def _blocks(values: Sequence[pa.ChunkedArray]) -> Iterator[bytes]:
    for each in values:
        for start in range(0, len(each), _BLOCK):
            yield b"\n".join(each.slice(start, _BLOCK).to_pylist())


def _column(column: pa.ChunkedArray, kind: str) -> np.ndarray | pd.Series:
    if column.null_count:
        raise ValueError(f"the output has {column.null_count} nulls")
    if kind == "time":
        times = pd.to_datetime(column.to_pandas(), format="ISO8601", utc=True)
        return times.to_numpy("datetime64[ms]").astype(np.int64)
    if kind == "thousandths":
        return np.round(column.to_numpy() * _THOUSANDTHS).astype(np.int64)
    return column.to_pandas() if kind == "text" else column.to_numpy()


def _differences(found: pd.DataFrame, expected: pd.DataFrame) -> tuple[int, int, int]:
    """Surplus copies of expected rows, missing expected rows, and rows that are not expected."""
    rows, places = np.unique(np.concatenate([_digests(found), _digests(expected)]), return_inverse=True)
    found_times = np.bincount(places[: len(found)], minlength=len(rows))
    times = np.bincount(places[len(found) :], minlength=len(rows))
    known = times > 0
    more = np.maximum(found_times - times, 0)
    return int(more[known].sum()), int(np.maximum(times - found_times, 0).sum()), int(more[~known].sum())


def _due(found: pd.DataFrame, expected: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """One of the expected rows of each key: the one that was found, if any."""
    was_found = np.isin(_digests(expected), _digests(found))
    return expected.iloc[np.argsort(~was_found, kind="stable")].drop_duplicates(key)


def _digests(table: pd.DataFrame) -> np.ndarray:
    """64 bits of each row's text: two different rows in a million share a digest with a probability of one in forty million."""
    texts = [pa.array(table[name]).cast(pa.string()) for name in table.columns]
    joined = pc.binary_join_element_wise(*texts, "\x1f")
    return pd.util.hash_array(joined.to_numpy(zero_copy_only=False).astype(object))


def expected(job: str, events: Events) -> pd.DataFrame:
    """Rows of the answer, in the columns of the output."""
    answer = job_module(job).expected(events)
    names = list(job_module(job).COLUMNS)
    return answer[names if set(names) <= set(answer.columns) else list(answer.columns)].reset_index(drop=True)
