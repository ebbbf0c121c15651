"""Packages add commands to `spark-ckpt` by entry points; a broken one is named and affects no other command."""

from __future__ import annotations

import pytest

import spark_ckpt
from spark_ckpt.cli.app import exit_code
from spark_ckpt.cli.verbs import GROUPS, OTHER, verbs
from spark_ckpt.errors import EnvironmentUnfit
from tests.named_ways import verbs as known

MODULE = """
from spark_ckpt.cli.verbs import Verb

def say():
    print("said")

SAY = Verb("say", "brought_verbs", "say")
NONE = "not a verb"
"""


@pytest.fixture
def bring(tmp_path, monkeypatch):
    """Install a package with the module above that registers a command."""

    def bring(name: str, value: str) -> None:
        (tmp_path / "brought_verbs.py").write_text(MODULE)
        metadata = tmp_path / "brought-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[spark_ckpt.verbs]\n{name} = brought_verbs:{value}\n")
        monkeypatch.syspath_prepend(tmp_path)

    return bring


def test_an_installed_package_brings_a_command(bring, capsys):
    bring("say", "SAY")
    assert exit_code(["say"]) == 0
    assert capsys.readouterr().out == "said\n"
    assert "say" in {verb.name for verb in verbs()}


@pytest.mark.parametrize(("name", "value"), [("say", "NONE"), ("say", "GONE"), ("shout", "SAY")])
def test_a_broken_package_is_named_when_its_command_is_used(bring, name, value):
    bring(name, value)
    assert exit_code([name]) == EnvironmentUnfit.exit_code
    with pytest.raises(EnvironmentUnfit) as refused:
        verbs()
    assert refused.value.context == {"package": "brought"}


def test_every_command_but_ui_takes_json():
    """The help of `spark-ckpt` promises it."""
    assert [words for words, options in known().items() if options is not None and "--json" not in options] == [("ui",)]


def test_a_broken_package_affects_no_other_command(bring, capsys):
    bring("say", "GONE")
    assert exit_code(["explain", "CKPT_STORE_IN_USE"]) == 0
    assert exit_code(["simulate", "--seed", "1", "--steps", "5"]) == 0
    capsys.readouterr()


def test_the_help_lists_every_command_once_in_groups(capsys):
    assert exit_code(["--help"]) == 0
    shown = capsys.readouterr().out
    headings = [line.removesuffix(":") for line in shown.splitlines() if line.endswith(":") and line[:1].isupper()]
    assert [each for each in headings if each != "Options"] == [each for each in GROUPS if each != OTHER]
    for verb in verbs():
        assert verb.short_help.endswith("."), verb.name
        assert shown.count(f"\n  {verb.name}  ") == 1, verb.name


def test_a_command_of_another_package_has_its_own_heading(bring, capsys):
    bring("say", "SAY")
    assert exit_code(["--help"]) == 0
    assert f"{OTHER}:\n  say" in capsys.readouterr().out


def test_the_version_is_printed(capsys):
    assert exit_code(["--version"]) == 0
    assert capsys.readouterr().out == f"spark-ckpt {spark_ckpt.__version__}\n"
