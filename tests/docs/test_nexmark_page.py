"""The page about NEXMark shows the tested queries and their output."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

from benchmarks.jobs import nexmark_q3, nexmark_q4
from benchmarks.nexmark.answers import expected
from benchmarks.nexmark.events import events

PAGE = Path(__file__).parents[2] / "docs" / "nexmark.md"
JOBS = PAGE.parents[1] / "benchmarks" / "jobs"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def answers(job: str, count: int) -> str:
    """Records of the events that `integration_tests/nexmark` runs the query on, the first ones by their last column or key."""
    rows = expected(job, events(6000, per_second=200))
    first = rows.sort_values("id" if "id" in rows else "category").head(count)
    return "\n".join(json.dumps(row, separators=(",", ":")) for row in first.to_dict("records"))


def test_the_queries_on_the_page_are_those_that_run() -> None:
    join, two = blocks("python")
    shown = [inspect.getsource(each) for each in (nexmark_q4.spark_ckpt_vectorised, nexmark_q4.winning_bids)]
    assert join == inspect.getsource(nexmark_q3.spark_ckpt_builtin)
    assert two == "\n\n".join(shown)


def test_the_records_on_the_page_are_the_queries_output() -> None:
    assert [block.strip() for block in blocks("json")] == [answers("nexmark_q3", 4), answers("nexmark_q4", 5)]


def test_every_query_has_its_row() -> None:
    named = re.findall(r"^\| (q\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert set(named) == {path.stem.removeprefix("nexmark_") for path in JOBS.glob("nexmark_q*.py")}
