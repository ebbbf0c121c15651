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


def wrong_stand_ins(path: Path) -> list[str]:
    """Tests that are named after "in the gate:" and do not run there. A name without a folder is in the module or its folder."""
    text, found = path.read_text(), []
    for said in re.findall(r"# .*?in the gate: (.*)", text):
        for name in re.findall(r"[\w/]*\btest_\w+(?:\.py)?", said):
            if not name.endswith(".py"):
                found += [name] if name not in gate_tests(text) else []
                continue
            file = ROOT / name if "/" in name else path.with_name(name)
            found += [name] if not file.is_file() or not in_the_gate(file) else []
    return found


def in_the_gate(file: Path) -> bool:
    text = file.read_text()
    return bool(gate_tests(text)) or re.search(r"^class Test\w+\(.*Conformance", text, re.MULTILINE) is not None


def test_the_tests_that_stand_in_for_a_long_one_run_in_the_gate() -> None:
    modules = sorted(path for folder in ("tests", "integration_tests") for path in (ROOT / folder).rglob("test_*.py"))
    found = {str(path.relative_to(ROOT)): wrong for path in modules if (wrong := wrong_stand_ins(path))}
    assert found == {}


def test_a_stand_in_that_is_long_itself_or_gone_is_found(tmp_path: Path) -> None:
    module, other = tmp_path / "test_it.py", tmp_path / "test_other.py"
    other.write_text("@pytest.mark.long\ndef test_b(): ...\n")
    named = "in the gate: test_other.py, test_gone.py, test_a, test_c"
    module.write_text(f"@pytest.mark.long  # {named}\ndef test_a(): ...\ndef test_c(): ...\n")
    assert wrong_stand_ins(module) == ["test_other.py", "test_gone.py", "test_a"]


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
