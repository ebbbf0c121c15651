"""The repair commands refuse an unusable `--options-file`, and report an unreachable broker, with typed errors.

They never show a value of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from spark_ckpt_delta.repair import main as repair_table
from spark_ckpt_kafka.control import ControlError
from spark_ckpt_kafka.repair import main as repair_topic

from spark_ckpt.connector_parts.options_file import read_options
from spark_ckpt.errors import ConfigInvalid, PublishFailed

COMMANDS = [
    pytest.param(repair_topic, ["--servers", "127.0.0.1:1", "--topic", "t", "--group", "s.out.0"], id="kafka"),
    pytest.param(repair_table, ["--table", "t", "--store-id", "s", "--sink", "out"], id="delta"),
]
FILES = {
    "damaged": b'{"sasl.password": "secret"',
    "binary": b"\xff\xfesecret",
    "a list": b'["secret"]',
    "nested": b'{"sasl.password": {"of": "secret"}}',
    "null": b'{"sasl.password": null}',
}


@pytest.mark.parametrize("kind", ["missing", "a folder", *FILES])
@pytest.mark.parametrize(("command", "names"), COMMANDS)
def test_an_unusable_options_file_is_an_error_with_advice(
    command: Callable[[Sequence[str]], int],
    names: list[str],
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path if kind == "a folder" else tmp_path / "options.json"
    if kind in FILES:
        path.write_bytes(FILES[kind])

    code = command([*names, "--options-file", str(path), "show"])

    shown = capsys.readouterr().err
    assert code == ConfigInvalid.exit_code
    assert shown.startswith(f"[{ConfigInvalid.condition}] {path}")
    assert "next: write one JSON object" in shown
    assert "secret" not in shown


def test_a_broker_that_does_not_answer_is_an_error_with_advice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def silent(*_: object) -> str:
        raise ControlError("no answer from h:1", hint="check that it runs", retriable=True)

    monkeypatch.setattr("spark_ckpt_kafka.repair.show", silent)

    assert repair_topic(["--servers", "h:1", "--topic", "t", "--group", "s.out.0", "show"]) == PublishFailed.exit_code
    shown = capsys.readouterr().err
    assert shown == f"[{PublishFailed.condition}] no answer from h:1\n  next: check that it runs\n"


def test_options_are_texts_as_clients_read_them(tmp_path: Path) -> None:
    path = tmp_path / "options.json"
    path.write_text('{"name": "Café", "allow_http": true, "timeout": 5}', "utf-8")

    assert read_options(path) == {"name": "Café", "allow_http": "true", "timeout": "5"}
    assert read_options(None) == {}
