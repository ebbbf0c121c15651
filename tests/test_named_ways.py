"""Every command, option, argument and setting that an error, a help text or a page names exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ckpt.explained.causes import CAUSES
from tests.named_ways import arguments, complaints, hints_of, incomplete_commands, texts_of, verbs, wrong_advice

ROOT = Path(__file__).parents[1]
PACKAGES = ("spark_ckpt", "spark_rewind", "checkpoint_lab", "checkpoint_protocols", "connectors", "examples")
MODULES = sorted(module for package in PACKAGES for module in (ROOT / package).rglob("*.py"))
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "benchmarks").rglob("*.md")])


def test_every_command_and_argument_that_a_text_of_the_code_names_exists():
    """Errors, hints, help texts, docstrings."""
    texts = [(module, text) for module in MODULES for text in texts_of(module)]
    assert len(texts) > 10_000
    found = [
        (module.name, wrong) for module, text in texts for wrong in (*complaints(text), *incomplete_commands(text))
    ]
    assert found == []


def test_everything_that_a_hint_advises_exists():
    hints = [(module, hint) for module in MODULES for hint in hints_of(module)]
    assert len(hints) > 400
    assert [(module.name, wrong) for module, hint in hints for wrong in wrong_advice(hint)] == []


def test_everything_that_a_cause_or_a_cure_advises_exists():
    texts = [(name, text) for name, each in CAUSES.items() for text in (each.cause, each.cure)]
    assert [(name, wrong) for name, text in texts for wrong in wrong_advice(text)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_and_argument_that_a_page_names_exists(page):
    assert complaints(page.read_text()) == []


def test_the_check_knows_every_command_and_connector():
    assert len(verbs()) > 30
    assert {"Job", "start", "KafkaSink", "KafkaSource", "DeltaSink", "DeltaSource", "FilesSource"} <= arguments().keys()


WRONG = [
    ("takeover=True (--takeover) replaces it now", "no command takes --takeover"),
    ("run `spark-ckpt verfy STORE`", "there is no command spark-ckpt verfy"),
    ("spark-ckpt verify STORE --depth", "spark-ckpt verify takes no --depth"),
    ("spark-ckpt rewind forget POINT", "there is no command spark-ckpt rewind forget"),
    ("start it with job.start(takeover=True)", "start takes no takeover"),
    ('Job(spark, "a", store=X, takover=True)', "Job takes no takover"),
    ('keep DeltaSink(..., motor="spark")', "DeltaSink takes no motor"),
    ("--conf spark.ckpt.take.over=true", "there is no setting spark.ckpt.take.over"),
    ("or confirm it: accept_new_table='out'", "no function takes accept_new_table="),
    ("adopt it again: spark-ckpt adopt CHECKPOINT STORE --source in", "spark-ckpt adopt lacks --job"),
    ("free it: spark-ckpt savepoint drop NAME", "spark-ckpt savepoint drop lacks an argument after NAME"),
]


@pytest.mark.parametrize(("text", "wrong"), WRONG, ids=[wrong for _, wrong in WRONG])
def test_a_text_that_names_a_missing_option_is_found(text, wrong):
    assert wrong in wrong_advice(text)


def test_a_wrong_hint_of_a_module_is_found_in_any_form(tmp_path):
    module = tmp_path / "planted.py"
    module.write_text(
        '_HINT = "use --takeover"\nraise E("x", hint=f"spark-ckpt show {store} " "--long" if a else "fine")\n'
    )
    assert [wrong for hint in hints_of(module) for wrong in wrong_advice(hint)] == [
        "no command takes --takeover",
        "spark-ckpt show takes no --long",
        "no command takes --long",
    ]
