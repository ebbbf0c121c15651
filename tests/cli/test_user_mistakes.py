"""A user's mistake is reported in a sentence with a hint and a documented exit code, never with a traceback."""

import json

import pytest

from tests.store.store_world import OPERATOR


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["show", "STORE", "99"], 5, "epoch 99"),
        (["show", "STORE", "many"], 2, "EPOCH"),
        (["state", "STORE", "nothing"], 5, OPERATOR),
        (["state", "STORE", OPERATOR, "--epoch", "99"], 5, "epoch 99"),
        (["state", "STORE", OPERATOR, "--savepoint", "none"], 5, "savepoint"),
        (["state", "STORE", OPERATOR, "--epoch", "1", "--savepoint", "x"], 2, "not both"),
        (["state", "STORE", OPERATOR, "--key", "k"], 2, "NAME=VALUE"),
        (["state", "STORE", OPERATOR, "--key", "v=1"], 2, "its keys: k STRING"),
        (["diff", "STORE", OPERATOR, "1", "99"], 5, "epoch 99"),
        (["savepoint", "add", "STORE", "7"], 2, "savepoint"),
        (["savepoint", "add", "STORE", "../up"], 2, "name"),
        (["savepoint", "drop", "STORE", "none"], 5, "savepoint"),
        (["restore", "STORE"], 2, "restore STORE TARGET"),
        (["handover", "STORE", "--timeout", "soon"], 2, "--timeout: 'soon' is no duration"),
        (["restore", "STORE", "99", "--dry-run"], 5, "epoch 99"),
        (["restore", "STORE", "none", "--dry-run"], 5, "savepoint"),
        (["list", "STORE", "--storage-option", "secret"], 2, "NAME=VALUE"),
        (["list", "STORE/nowhere"], 3, "no store"),
        (["frobnicate"], 2, "frobnicate"),
        (["jars", "cobol"], 2, "cobol"),
        (["doctor", "--kafka", "x", "--command-config", "STORE/absent"], 2, "cannot be read"),
        (["demo", "--dir", "STORE"], 2, "not empty"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_reported_in_words(command, world, arguments, code, message):
    answer = command(*(each.replace("STORE", world.store.location.uri) for each in arguments))

    assert answer.code == code
    assert message in answer.err
    assert "Traceback" not in answer.err
    assert answer.out == ""


def test_no_command_creates_a_store(command, tmp_path):
    command("list", tmp_path / "nowhere")

    assert list(tmp_path.iterdir()) == []


def test_with_json_an_error_is_json_on_stderr(command, world):
    answer = command("show", world.store.location.uri, 99, "--json")

    error = json.loads(answer.err)["error"]
    assert (error["condition"], answer.out) == ("CKPT_EPOCH_NOT_FOUND", "")
    assert error["hint"]


def test_a_storage_option_without_a_value_is_not_repeated_in_the_error(command, world):
    answer = command("list", world.store.location.uri, "--storage-option", "AWS_SECRET_ACCESS_KEY:hunter2")

    assert "hunter2" not in answer.err
