"""The page that follows one epoch names existing functions, and each of them has the number of its step."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "design" / "epoch-in-nine-steps.md"


def named() -> Iterator[tuple[int, str, str]]:
    """Step, module and function of each row of the page's table."""
    for step, places in re.findall(r"^\| (\d) \|[^|]*\|(.*)\|$", PAGE.read_text(), re.MULTILINE):
        for module, function in re.findall(r"`([\w/]+\.py):(\w+)`", places):
            yield int(step), module, function


def carries(text: str, function: str, step: int) -> bool:
    """True if a function of this name has the comment of the step."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef) and node.name == function]
    comment = f"# Step {step} of docs/design/{PAGE.name}."
    return any(comment in (ast.get_source_segment(text, node) or "") for node in nodes)


def test_every_function_of_the_page_carries_the_number_of_its_step():
    found = list(named())
    assert {step for step, _, _ in found} == set(range(1, 10))
    assert [each for each in found if not carries((ROOT / each[1]).read_text(), each[2], each[0])] == []


def test_a_function_without_its_number_is_found():
    text = "def f():\n    # Step 2 of docs/design/epoch-in-nine-steps.md.\n    return 1\n"
    assert carries(text, "f", 2)
    assert not carries(text, "f", 3)
    assert not carries(text, "g", 2)
