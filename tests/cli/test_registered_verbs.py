"""Packages bring commands of `spark-ckpt` by entry points; a broken one is named and costs no other command."""

from __future__ import annotations

import pytest

from spark_ckpt.cli.app import exit_code
from spark_ckpt.cli.verbs import verbs
from spark_ckpt.errors import EnvironmentUnfit

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


def test_a_broken_package_costs_no_other_command(bring, capsys):
    bring("say", "GONE")
    assert exit_code(["explain", "CKPT_STORE_IN_USE"]) == 0
    assert exit_code(["simulate", "--seed", "1", "--steps", "5"]) == 0
    capsys.readouterr()
