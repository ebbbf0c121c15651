"""Output that cannot be written is an error, data of users breaks no table and commands no terminal, and Ctrl-C ends silently."""

import errno
import io
import json
import os
import subprocess
import sys

import pytest

from spark_ckpt.cli import app
from spark_ckpt.cli.output import print_facts, print_json, print_table

INTERRUPTED_IMPORT = """
import sys
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "spark_ckpt.cli.app":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
from spark_ckpt.cli import main
main()
"""


class Ended(Exception):
    """Raised in place of the end of the process."""


def full(at):
    """A stdout on a full disk, which `at` ("write" or "flush") finds out."""

    def refuse(*text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    stdout = io.StringIO()
    setattr(stdout, at, refuse)
    return stdout


@pytest.mark.parametrize("at", ["write", "flush"])
@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_output_on_a_full_disk_is_an_error(world, monkeypatch, capsys, at, options):
    monkeypatch.setattr(sys, "stdout", full(at))

    assert app.exit_code(["list", world.store.location.uri, *options]) == 2
    assert "the output cannot be written: No space left on device" in capsys.readouterr().err


def test_a_reader_that_has_ended_is_no_error(world, monkeypatch, capsys):
    stdout = io.StringIO()
    monkeypatch.setattr(stdout, "flush", lambda: (_ for _ in ()).throw(BrokenPipeError()))
    monkeypatch.setattr(sys, "stdout", stdout)

    assert app.exit_code(["list", world.store.location.uri]) == 0
    assert capsys.readouterr().err == ""


def test_control_characters_of_a_users_data_are_shown_and_not_sent(capsys):
    print_table(("na\nme",), [("a\nb\t\r",), ("\x1b[31mred\x9b\x7f",), (["\x7f"],)])
    print_facts({"job": "\x1b]0;title\x07"})

    *table, fact = capsys.readouterr().out.splitlines()
    assert table == [r"na\nme", r"a\nb\t\r", r"\x1b[31mred\x9b\x7f", r'["\x7f"]']
    assert fact == r"job  \x1b]0;title\x07"


def test_characters_that_the_terminal_lacks_are_escaped(world, tmp_path, monkeypatch):
    def end(code):
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    with pytest.raises(Ended, match="0"):
        app.run(["report", world.store.location.uri, "-o", str(tmp_path / "zo\xeb.html")])
    written = sys.stdout.buffer.getvalue()
    print_json({"key": "zo\xeb"})
    sys.stdout.flush()

    assert rb"zo\xeb.html (" in written
    assert json.loads(sys.stdout.buffer.getvalue()[len(written) :]) == {"key": "zo\xeb"}


def test_ctrl_c_while_modules_load_ends_without_a_traceback():
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (130, "")
