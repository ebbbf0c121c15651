"""Every guarantee has tests in the gate."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import spark_ckpt

ROOT = Path(spark_ckpt.__file__).parents[1]


def promised_files() -> dict[str, list[Path]]:
    """Files of tests per guarantee; a name without a folder is in the folder of the one before it."""
    page = (ROOT / "docs" / "guarantees.md").read_text()
    found: dict[str, list[Path]] = {}
    for promise, tests in re.findall(r"^\*\*(.+?)\.\*\* .*?\nTests: (.+?)\n", page, re.DOTALL | re.MULTILINE):
        for name in re.findall(r"`([\w/]+\.py)`", tests):
            files = found.setdefault(promise, [])
            files.append(ROOT / name if "/" in name else files[-1].with_name(name))
    return found


def gate_tests(text: str) -> list[str]:
    """Tests of a module that are not all long."""
    tree = ast.parse(text)
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")]
    return [each.name for each in functions if not any(is_long(mark) for mark in each.decorator_list)]


def is_long(mark: ast.expr) -> bool:
    return ast.unparse(mark) == "pytest.mark.long"


def test_every_promise_has_tests_in_the_gate() -> None:
    promises = promised_files()
    assert len(promises) == 18
    assert [
        (promise, file.name)
        for promise, files in promises.items()
        for file in files
        if not gate_tests(file.read_text())
    ] == []


def test_a_promise_that_only_long_tests_keep_is_found() -> None:
    assert gate_tests("@pytest.mark.long\ndef test_it(): ...\n") == []
    assert gate_tests("@pytest.mark.kill\ndef test_it(): ...\n") == ["test_it"]
