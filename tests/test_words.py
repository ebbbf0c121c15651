"""Docstrings, comments, names and pages follow the rules of words in CONTRIBUTING.md, in all packages and listed pages."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = (
    "benchmarks",
    "checkpoint_lab",
    "checkpoint_protocols",
    "connectors",
    "examples",
    "integration_tests",
    "spark_ckpt",
    "spark_rewind",
    "tests",
)
PAGES: tuple[str, ...] = (
    "CONTRIBUTING.md",
    "docs/design/architecture.md",
    "docs/design/contracts.md",
    "docs/design/traces.md",
    "specs/README.md",
    "docs/protocols/README.md",
    "docs/design/dependencies.md",
    "docs/design/benchmarks.md",
    "docs/design/simulator.md",
    "docs/design/epoch-in-nine-steps.md",
    "docs/design/shared-state-files.md",
    "README.md",
    "docs/comparison.md",
    "docs/concepts.md",
    "docs/deployment.md",
    "docs/guarantees.md",
    "docs/quickstart.md",
    "docs/sizing.md",
    "docs/troubleshooting.md",
    "docs/connectors.md",
    "docs/operations.md",
    "docs/backups.md",
    "docs/changing.md",
    "docs/second-driver.md",
    "docs/edges-between-programs.md",
    "docs/stores.md",
    "docs/state.md",
    "docs/operators.md",
    "docs/looking.md",
    "docs/tutorial.md",
    "docs/installing.md",
    "docs/examples.md",
    "docs/graphs.md",
    "docs/migrating.md",
    "docs/porting.md",
    "docs/ported.md",
    "docs/monitoring.md",
    "docs/registry.md",
    "docs/index.md",
    "docs/trying-your-own.md",
    "docs/rewind-tutorial.md",
    "docs/writing-a-connector.md",
    "docs/security.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "docs/rewind.md",
    "docs/reliability.md",
    "docs/proof.md",
    "docs/stages.md",
    "docs/two-teams-one-line.md",
    "docs/sparks-operators.md",
    "docs/protocols/epochs.md",
    "docs/design/performance.md",
    "benchmarks/RESULTS.md",
)
"""Pages that keep the rules."""

OPENERS = re.compile(r"(What|Which|Whether|Who|Whoever|Whatever|Where|How|When|Why)\b")
BANNED = re.compile(
    r"\b(nobody|somebody|whoever|whatever|anew|owed|owes|beside|told|goes on|let go|given up|stands on|passed over"
    r"|way out|taken back|put out)\b",
    re.IGNORECASE,
)
NAMES = re.compile(r"(^|_)(told|born|lived|heed|took_over|let_go|owed|beside|anew|way_out|spent)(_|$)")
GLOSSARY_COLUMN = "not used"


def broken_in_code(text: str, texts: bool = True) -> Iterator[str]:
    """Places of a module that break a rule. `texts`: check its string literals, too."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and NAMES.search(node.name):
            yield f"{node.lineno}: the name {node.name}"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            yield from _broken_docstring(getattr(node, "lineno", 1), ast.get_docstring(node) or "")
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from _broken_docstring(node.lineno, node.value.value)
        if texts and isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield from _broken_text(node.lineno, node.value)
    if not BANNED.search(text):
        return  # to cut all modules into tokens takes half of the test
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and (found := BANNED.search(token.string)):
            yield f"{token.start[0]}: {found.group()!r} in a comment"


def _broken_docstring(line: int, text: str) -> Iterator[str]:
    if opener := OPENERS.match(text.strip()):
        yield f"{line}: a docstring begins with {opener.group()!r}"
    if banned := BANNED.search(text):
        yield f"{line}: {banned.group()!r} in a docstring"


def _broken_text(line: int, text: str) -> Iterator[str]:
    """Error texts, hints, help and log lines."""
    if banned := BANNED.search(text):
        yield f"{line}: {banned.group()!r} in a text"


def broken_in_page(text: str) -> Iterator[str]:
    """Lines of a page that break a rule; code blocks are left out, and so is the glossary's column of synonyms."""
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        in_code ^= line.lstrip().startswith("```")
        if in_code or GLOSSARY_COLUMN in line:
            continue
        if line.startswith("#") and OPENERS.match(line.lstrip("# ")):
            yield f"{number}: a heading begins with a question word"
        if banned := BANNED.search(re.sub(r"`[^`]*`|~~[^~]*~~", "", line)):
            yield f"{number}: {banned.group()!r}"


def modules() -> list[Path]:
    """Modules of all packages."""
    return sorted(module for package in CODE for module in (ROOT / package).rglob("*.py"))


def is_product(module: Path) -> bool:
    """True if users see the module's texts."""
    return module.relative_to(ROOT).parts[0] not in ("tests", "integration_tests", "benchmarks")


def test_code_keeps_the_rules_of_words():
    found = [
        f"{module.relative_to(ROOT)}:{each}"
        for module in modules()
        for each in broken_in_code(module.read_text(), texts=is_product(module))
    ]
    assert sorted(set(found)) == []


def test_pages_keep_the_rules_of_words():
    assert [f"{page}:{each}" for page in PAGES for each in broken_in_page((ROOT / page).read_text())] == []


def test_every_listed_place_exists():
    assert [place for place in (*CODE, *PAGES) if not (ROOT / place).exists()] == []


@pytest.mark.parametrize(
    "planted",
    [
        '"""What a run owes."""',
        'raise E("the epoch was not decided, nobody has it")',
        'def f():\n    """Whether it is there."""',
        'X = 1\n"""Rows that nobody needs."""',
        "x = 1  # the epoch is begun anew",
        "def _told(): ...",
    ],
)
def test_code_that_breaks_a_rule_is_found(planted):
    assert list(broken_in_code(planted))


@pytest.mark.parametrize("planted", ["## What it does", "The epoch goes on.", "| a | beside it |"])
def test_a_page_that_breaks_a_rule_is_found(planted):
    assert list(broken_in_page(planted))


@pytest.mark.parametrize("plain", ['"""Commit an epoch."""', "def commit(): ...", "x = 1  # a stale answer is dropped"])
def test_plain_words_are_left_alone(plain):
    assert list(broken_in_code(plain)) == []
