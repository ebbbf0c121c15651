"""Counts agree with their nouns in all user texts."""

import ast
import re

import pytest

from spark_ckpt.wording import counted, epochs, one_or_many
from tests.test_architecture import CONNECTORS, CORE

_COUNT = re.compile(r"\s(?:rows|keys|epochs|records|incarnations)\b")
_LEFT_ALONE = {"simulator", "protocol"}
"""Modules whose sentences are always in the plural."""


@pytest.mark.parametrize(("count", "text"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (2000, "2,000 rows")])
def test_a_count_agrees_with_its_noun(count, text):
    assert counted(count, "row") == text


def test_irregular_nouns_and_verbs_agree_too():
    assert counted(2, "key of the batch", "keys of the batch") == "2 keys of the batch"
    assert [one_or_many(n, "was", "were") for n in (0, 1, 2)] == ["were", "was", "were"]


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([4], "epoch 4"), ([4, 5], "epochs 4 and 5"), ([4, 5, 6], "epochs 4 to 6"), ([4, 6, 9], "epochs 4, 6 and 9")],
)
def test_epochs_are_named_one_by_one_or_as_a_range(numbers, text):
    assert epochs(numbers) == text


def sentences():
    """Yield texts right after a value in every f-string: (place, text)."""
    for module in sorted([*CORE.rglob("*.py"), *CONNECTORS.rglob("*.py")]):
        if not _LEFT_ALONE & set(module.parts):
            for node in ast.walk(ast.parse(module.read_text())):
                if isinstance(node, ast.JoinedStr):
                    for value, text in zip(node.values, node.values[1:], strict=False):
                        if isinstance(value, ast.FormattedValue) and isinstance(text, ast.Constant):
                            yield f"{module.name}:{node.lineno}", str(text.value)


def test_no_message_counts_by_hand():
    """`f"{n} rows"` can print "1 rows"; `counted(n, "row")` does not."""
    assert [place for place, text in sentences() if _COUNT.match(text) or "(s)" in text] == []
