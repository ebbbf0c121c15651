"""Output that cannot be written is an error, data of users breaks no table and commands no terminal, and Ctrl-C ends silently."""

import errno
import io
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_ckpt.cli import app
from spark_ckpt.cli.output import print_facts, print_json, print_table, utc
from tests.store.store_world import OPERATOR

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


@pytest.mark.parametrize("milliseconds", [300_000_000_000_000, 2**63 - 1])
def test_a_watermark_after_the_year_9999_is_printed(milliseconds):
    assert utc(milliseconds) == f"{milliseconds} ms since 1970"


class Ended(Exception):
    """Raised in place of the end of the process."""


def full(at):
    """A stdout on a full disk, which `at` ("write" or "flush") finds out."""

    def refuse(*text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    stdout = io.StringIO()
    setattr(stdout, at, refuse)
    return stdout


@pytest.fixture
def ended(monkeypatch):
    """Have the end of the process raise `Ended`."""

    def end(code):
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", end)


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


def test_characters_that_the_terminal_lacks_are_escaped(world, tmp_path, monkeypatch, ended):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    with pytest.raises(Ended, match=r"^0$"):
        app.run(["report", world.store.location.uri, "-o", str(tmp_path / "zo\xeb.html")])
    written = sys.stdout.buffer.getvalue()
    print_json({"key": "zo\xeb"})
    sys.stdout.flush()

    assert rb"zo\xeb.html (" in written
    assert json.loads(sys.stdout.buffer.getvalue()[len(written) :]) == {"key": "zo\xeb"}


def test_an_error_on_a_full_disk_has_its_exit_code(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", full("write"))

    assert app.exit_code(["list", str(tmp_path / "nowhere")]) == 3


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_a_command_whose_output_is_closed_does_its_work(world, monkeypatch, ended, options):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)

    with pytest.raises(Ended, match=r"^0$"):
        app.run(["savepoint", "add", world.store.location.uri, "named", *options])
    sys.stdout.close()
    sys.stderr.close()
    assert "named" in world.store.log.state().savepoints


def test_a_report_on_a_full_disk_leaves_the_older_one(world, command, tmp_path, monkeypatch):
    older = tmp_path / "report.html"
    older.write_text("older")
    real = Path.write_text

    def half(path, text, **options):
        real(path, text[: len(text) // 2], **options)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", half)

    assert command("report", world.store.location.uri, "-o", older).code == 2
    assert older.read_text() == "older"
    assert not list(tmp_path.glob(".*"))


def test_a_report_is_written_to_a_device_and_through_a_link(world, command, tmp_path):
    link, target = tmp_path / "link.html", tmp_path / "target.html"
    target.write_text("older")
    link.symlink_to(target)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    assert command("report", world.store.location.uri, "-o", link).code == 0
    assert link.is_symlink()
    assert "</html>" in target.read_text()
    read = ThreadPoolExecutor(1).submit(fifo.read_text)
    assert command("report", world.store.location.uri, "-o", fifo).code == 0
    assert "</html>" in read.result()


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_an_error_that_quotes_a_users_data_commands_no_terminal(world, capsys, monkeypatch, options):
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), "ascii", errors="backslashreplace"))

    named = ["--savepoint", "zo\xeb\x1b]0;\x9b"]
    assert app.exit_code(["state", world.store.location.uri, OPERATOR, *named, *options]) == 5
    sys.stderr.flush()
    written = sys.stderr.buffer.getvalue()
    assert not {0x1B, 0x9B} & set(written)
    if options:
        assert "'zo\xeb" in json.loads(written)["error"]["what"]


def test_json_with_control_characters_commands_no_terminal(capsys):
    print_json({"key": "\x1b\x7f\x9b"})

    assert not {"\x1b", "\x7f", "\x9b"} & set(printed := capsys.readouterr().out)
    assert json.loads(printed) == {"key": "\x1b\x7f\x9b"}


def test_ctrl_c_while_modules_load_ends_without_a_traceback():
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (130, "")
