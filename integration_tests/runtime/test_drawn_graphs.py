"""Any graph, any rows, any batches, a crash anywhere: every sink has the rows that plain Python computes over all rows at once.

`SPARK_CKPT_DRAWN_GRAPHS=200 pytest integration_tests/runtime/test_drawn_graphs.py` draws more of them.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress

import pytest
from drawn_graphs import SOURCES, Graph, graphs
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from runtime_kit import Bench, drain

import spark_ckpt as ckpt
from spark_ckpt import failpoints

pytestmark = [pytest.mark.spark, pytest.mark.timeout(24 * 3600)]

DRAWN = int(os.environ.get("SPARK_CKPT_DRAWN_GRAPHS", "2"))
MOST_ROWS = 2000
DRAW = (Phase.explicit, Phase.reuse, Phase.generate)  # each attempt to shrink an example would take ten seconds
POINTS = [
    "",
    "STAGED:raise",
    "STAGED:raise:2",
    "EPOCH_COMMITTING:raise:2",
    "EPOCH_COMMITTED:raise:2",
    "PUBLISH_COMMITTED:raise",
]
FILES = st.lists(st.lists(st.integers(0, 6), max_size=8), max_size=2)
ROUNDS = st.lists(st.tuples(FILES, FILES, st.sampled_from(POINTS)), min_size=1, max_size=2)


def job(bench: Bench, graph: Graph) -> ckpt.Job:
    made = bench.job()
    graph.build(made, [made.source(name, bench.source(name)) for name in SOURCES], bench.sink)
    return made


def put(bench: Bench, name: str, files: list[list[int]]) -> list[int]:
    for file in files:
        bench.put(*[(value,) for value in file], into=name)
    return [value for file in files for value in file]


def shown(bench: Bench, sink: int) -> Counter[int]:
    exists = (bench.folder / f"s{sink}").exists()
    return Counter(row["v"] for row in bench.rows(f"s{sink}")) if exists else Counter()


@settings(max_examples=DRAWN, deadline=None, suppress_health_check=list(HealthCheck), phases=DRAW)
@given(graph=graphs(), rounds=ROUNDS)
@pytest.mark.long
def test_every_sink_has_what_plain_python_computes(
    bench: Bench, tmp_path_factory: pytest.TempPathFactory, graph: Graph, rounds: list[tuple[list[list[int]], ...]]
) -> None:
    everything = {
        name: [value for each in rounds for file in each[at] for value in file] for at, name in enumerate(SOURCES)
    }
    assume(sum(found.total() for found in graph.output(everything).values()) <= MOST_ROWS)
    fresh = Bench(bench.spark, tmp_path_factory.mktemp("drawn"), schema="v long")
    rows: dict[str, list[int]] = {name: [] for name in SOURCES}
    for *files, point in rounds:
        for name, each in zip(SOURCES, files, strict=True):
            rows[name] += put(fresh, name, each)
        failpoints.arm(str(point))
        try:
            with suppress(ckpt.CkptError, failpoints.FailpointHit):  # a start may fail as well
                drain(job(fresh, graph))
        finally:
            failpoints.arm("")
        drain(job(fresh, graph))
        for sink, expected in graph.output(rows).items():
            assert shown(fresh, sink) == expected, f"sink s{sink} of {graph}"
