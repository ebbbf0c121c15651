"""The page's file runs, is as short as the page says, and condemns planted bugs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.protocol.literal import coordinated, synchronous_logging

PAGE = Path(__file__).parents[2] / "docs" / "trying-your-own.md"
LINES_MAX = 40


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """Names that the page's file defines."""
    found: dict[str, Any] = {}
    exec(compile(blocks()[0], str(PAGE), "exec"), found)
    return found


def test_a_fault_a_workload_and_a_graph_take_one_file_of_forty_lines() -> None:
    assert len(blocks()[0].splitlines()) <= LINES_MAX


def test_the_protocols_of_the_page_survive_its_fault(names: dict[str, Any]) -> None:
    exec(compile(blocks()[1], str(PAGE), "exec"), names)


@pytest.mark.parametrize(
    "wrong", [coordinated.ONE_PHASE, synchronous_logging.DOES_NOT_DEDUPE], ids=lambda each: each.name
)
def test_a_protocol_that_is_wrong_is_condemned_by_the_pages_fault(names: dict[str, Any], wrong: Any) -> None:
    outcomes = (names["verdict"](wrong, seed) for seed in range(100))

    assert any(outcome.condemned for outcome in outcomes)


def test_the_pages_rows_go_one_way_each(names: dict[str, Any]) -> None:
    routes = names["Keyed"](names["GRAPH"], 6).routes

    assert {len(ways) for ways in routes.values()} == {0, 1}
    assert len({ways[0][0] for lineage, ways in routes.items() if "." in lineage and ">" not in lineage}) == 2
