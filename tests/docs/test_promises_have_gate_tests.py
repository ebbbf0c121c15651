"""Every guarantee has tests in the gate."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path

import spark_ckpt

ROOT = Path(spark_ckpt.__file__).parents[1]
LONG = "pytest.mark.long"


def promised_files() -> dict[str, list[Path]]:
    """Files of tests per guarantee, without those after "(long)"; a name without a folder is in the folder of the one before it."""
    page = (ROOT / "docs" / "guarantees.md").read_text()
    found: dict[str, list[Path]] = {}
    for promise, tests in re.findall(r"^\*\*(.+?)\.\*\* .*?\nTests: (.+?)\n(?:\n|\Z)", page, re.DOTALL | re.MULTILINE):
        for name in re.findall(r"`([\w/]+\.py)`", tests.partition("(long)")[0]):
            files = found.setdefault(promise, [])
            files.append(ROOT / name if "/" in name else files[-1].with_name(name))
    return found


def gate_tests(text: str) -> list[str]:
    """Tests of a module that have a case without the mark `long`."""
    tree = ast.parse(text)
    named = {ast.unparse(each.targets[0]): each.value for each in tree.body if isinstance(each, ast.Assign)}
    if "pytestmark" in named and LONG in ast.unparse(named["pytestmark"]):
        return []
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")]
    return [each.name for each in functions if not any(is_long(mark, named) for mark in each.decorator_list)]


def is_long(mark: ast.expr, named: Mapping[str, ast.expr]) -> bool:
    """True for the mark itself, and for parameters that all have it."""
    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.parametrize":
        return are_long(mark.args[1], named)
    return ast.unparse(mark) == LONG


def are_long(cases: ast.expr, named: Mapping[str, ast.expr]) -> bool:
    match cases:
        case ast.Name(id=name) if name in named:
            return are_long(named[name], named)
        case ast.Starred(value=value):
            return are_long(value, named)
        case ast.GeneratorExp(elt=case) | ast.ListComp(elt=case):
            return are_long(case, named)
        case ast.List(elts=[_, *_] as each) | ast.Tuple(elts=[_, *_] as each):
            return all(are_long(case, named) for case in each)
        case ast.Call(keywords=keywords):
            return any(each.arg == "marks" and LONG in ast.unparse(each.value) for each in keywords)
    return False


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
    assert gate_tests("pytestmark = [pytest.mark.kill, pytest.mark.long]\ndef test_it(): ...\n") == []


def test_a_promise_of_which_every_case_is_long_is_found() -> None:
    case = "pytest.param(1, marks=pytest.mark.long)"
    text = f"FEW = [{case}]\n@pytest.mark.parametrize('n', [{case}, *({case} for _ in range(2)), *FEW])\ndef test_it(n): ...\n"
    assert gate_tests(text) == []
    assert gate_tests(text.replace("[pytest", "[0, pytest", 1)) == ["test_it"]
    assert gate_tests("@pytest.mark.parametrize('n', [1, 2])\ndef test_it(n): ...\n") == ["test_it"]
