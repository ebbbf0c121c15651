"""Every error has an explanation."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import spark_ckpt
from spark_ckpt.cli.app import exit_code
from spark_ckpt.errors import CkptError, ConfigInvalid
from spark_ckpt.explained.causes import CAUSES
from spark_ckpt.explained.explanation import conditions, explained, explanation_of
from spark_ckpt.pages.errors import errors_page

ROOT = Path(spark_ckpt.__file__).parents[1]
MODULES = [*(ROOT / "spark_ckpt").rglob("*.py"), *(ROOT / "connectors").rglob("*.py")]
NOBODY_MEETS = {"CKPT_ERROR", "CKPT_SIMULATED_QUERY_DIED"}
"""The base class, and the error of a simulated query."""


def defined_in(text: str) -> set[str]:
    """Return the conditions that a module's classes define, read from its text, so that unimported modules count, too."""
    classes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    values = [statement.value for node in classes for statement in node.body if assigns(statement, "condition")]
    return {value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)}


def assigns(statement: ast.stmt, name: str) -> bool:
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


@cache
def every_condition() -> frozenset[str]:
    return frozenset(condition for module in MODULES for condition in defined_in(module.read_text())) - NOBODY_MEETS


def test_every_condition_of_core_and_connectors_has_cause_and_cure():
    missing = sorted(every_condition() - CAUSES.keys())
    assert missing == []
    assert len(CAUSES) > 50


def test_no_condition_is_explained_that_nothing_raises():
    assert sorted(CAUSES.keys() - every_condition()) == []


def test_a_new_error_without_an_explanation_is_found():
    planted = 'class Planted(CkptError):\n    """x"""\n    condition = "CKPT_PLANTED"\n'
    assert defined_in(planted) - CAUSES.keys() == {"CKPT_PLANTED"}


def test_the_command_knows_every_condition():
    assert set(conditions()) == every_condition()


def test_cause_and_cure_are_sentences():
    texts = [text for cause in CAUSES.values() for text in (cause.cause, cause.cure)]
    assert [text for text in texts if not re.fullmatch(r"[A-Z`].*[.]", text) or "  " in text] == []


def test_pages_that_a_cure_names_exist():
    named = {page for cause in CAUSES.values() for page in re.findall(r"docs/[\w-]+\.md", cause.cure)}
    assert named
    assert [page for page in sorted(named) if not (ROOT / page).is_file()] == []


def test_settings_and_commands_that_a_cure_names_exist():
    from spark_ckpt.cli.verbs import verbs as installed
    from spark_ckpt.config import setting_names

    cures = " ".join(cause.cause + " " + cause.cure for cause in CAUSES.values())
    verbs = set(re.findall(r"`spark-ckpt ([\w-]+)", cures))
    assert verbs
    assert verbs - {verb.name for verb in installed()} == set()
    assert {"lease", "timeout", "keep_epochs", "max_failed_epochs", "publish_timeout"} <= set(setting_names())


@pytest.mark.parametrize("written", ["CKPT_EPOCH_DAMAGED", "[CKPT_EPOCH_DAMAGED]", "epoch_damaged"])
def test_a_condition_is_found_as_a_message_shows_it_and_without_its_prefix(written):
    assert explained(written).name == "EpochDamaged"


def test_a_misspelt_condition_is_answered_with_the_nearest_one():
    with pytest.raises(ConfigInvalid) as caught:
        explained("CKPT_EPOCH_DAMAGD")
    assert caught.value.hint == "did you mean CKPT_EPOCH_DAMAGED?"


def test_an_error_of_a_foreign_connector_is_explained_by_its_docstring():
    class LedgerClosed(CkptError):
        """The ledger is closed at night."""

        condition = "CKPT_LEDGER_CLOSED"

    explanation = explanation_of(LedgerClosed)
    assert (explanation.meaning, explanation.condition) == ("The ledger is closed at night.", "CKPT_LEDGER_CLOSED")
    assert explanation.cause


def test_the_command_prints_meaning_cause_and_cure(capsys):
    assert exit_code(["explain", "CKPT_STORE_IN_USE"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    explanation = explained("CKPT_STORE_IN_USE")
    assert all(
        text in printed for text in (explanation.condition, explanation.meaning, explanation.cause, explanation.cure)
    )


def test_the_command_without_a_condition_lists_all(capsys):
    assert exit_code(["explain"]) == 0
    assert set(re.findall(r"^CKPT_\w+", capsys.readouterr().out, re.MULTILINE)) == every_condition()


def test_a_condition_that_does_not_exist_is_wrong_use(capsys):
    assert exit_code(["explain", "CKPT_NO_SUCH_THING"]) == 2
    assert "CKPT_CONFIG_INVALID" in capsys.readouterr().err


def test_the_page_of_errors_is_generated_from_the_errors():
    """Regenerate with: python -m spark_ckpt.pages.errors > docs/errors.md"""
    assert (ROOT / "docs" / "errors.md").read_text() == errors_page()
