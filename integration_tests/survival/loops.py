"""Graphs with loops, and their output, computed without Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

import pandas as pd
from pyspark import cloudpickle
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState

import spark_ckpt as ckpt

Link = tuple[int, int]

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import from the tests' folder


def components(job: ckpt.Job, links: ckpt.Stream) -> ckpt.Stream:
    """Connected components of a graph that only grows: (node, label) whenever a node's label decreases; the last one is the least
    node of its component. A node sends its label to its neighbours, through the loop."""
    loop = job.feedback("labels", "node long, neighbour long, label long")
    none = F.lit(None).cast("long").alias("label")
    there, back = (links.select(F.col(x).alias("node"), F.col(y).alias("neighbour"), none) for x, y in ("ab", "ba"))
    found = (
        there.union(back)
        .union(loop)
        .groupBy("node")
        .applyInPandasWithState(
            relabelled,
            "node long, label long, informed long",
            "label long, neighbours array<long>",
            "append",
            "NoTimeout",
            "label",
        )
    )
    informed = found.filter("informed IS NOT NULL")
    loop.close(informed.selectExpr("informed AS node", "CAST(NULL AS long) AS neighbour", "label"))
    return found.filter("informed IS NULL").select("node", "label")


def relabelled(
    key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[tuple[int, int, int | None]]:
    """One node's update: the least label that it received goes to its neighbours, its own label to new ones."""
    node = int(key[0])
    label, neighbours = state.get if state.exists else (None, [])
    known, before = set(neighbours), label
    rows = pd.concat(list(frames))
    new = {int(each) for each in rows["neighbour"].dropna()} - known
    heard = [int(each) for each in rows["label"].dropna()]
    label = min([node if label is None else label, *heard])
    state.update((label, sorted(known | new)))
    if label != before:
        yield node, label, None
    for each in sorted(known | new) if label != before else sorted(new):
        yield node, label, each


def labels_of(links: Iterable[Link]) -> dict[int, int]:
    """Every node's final label."""
    links = list(links)
    labels = {node: node for link in links for node in link}
    changed = True
    while changed:
        changed = False
        for a, b in links:
            least = min(labels[a], labels[b])
            changed = changed or labels[a] != least or labels[b] != least
            labels[a] = labels[b] = least
    return labels


def final_labels(rows: Sequence[tuple[int, int]]) -> dict[int, int]:
    """The least label in the output for each node."""
    final: dict[int, int] = {}
    for node, label in rows:
        final[node] = min(label, final.get(node, label))
    return final


def rounds(job: ckpt.Job, rows: ckpt.Stream, name: str = "rounds", schema: str = "k string, v long") -> ckpt.Stream:
    """A loop without an operator and without an end: every row (k, v) iterates as (k, v + 1)."""
    loop = job.feedback(name, schema)
    together = rows.union(loop)
    loop.close(together.selectExpr("k", "v + 1 AS v"))
    return together
