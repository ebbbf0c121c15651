"""Output and exit codes of `spark-ckpt rewind plan`, which needs no JVM."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from spark_ckpt.cli.app import exit_code
from spark_ckpt.cli.verbs import verbs
from spark_rewind.plan import RewindPlan
from spark_rewind.records import RewindRecord
from tests.rewind.rewind_kit import WrittenQuery, WrittenTable, began


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    writer, reader = WrittenQuery(tmp_path / "ingest"), WrittenQuery(tmp_path / "totals")
    bronze = WrittenTable(tmp_path / "bronze")
    for number in range(4):
        writer.batch({"clicks": {"0": 10 * number + 10}})
        bronze.version((writer.query, number), at_ms=began(number, 1000))
        reader.batch(bronze.at(number + 1), state=True, at_ms=began(number, 2000))
    return tmp_path


def plan_command(lake: Path, to: str, *more: str) -> list[str]:
    return [
        "rewind",
        "plan",
        str(lake / "ingest"),
        str(lake / "totals"),
        "--to",
        to,
        "--table",
        str(lake / "bronze"),
        *more,
    ]


def test_the_plan_prints_the_line_and_its_causes(lake, capsys):
    assert exit_code(plan_command(lake, "ingest@1")) == 0
    text = capsys.readouterr().out
    table = f"table {lake / 'bronze'}"
    assert text.splitlines()[:4] == [
        "to ingest@1: 2 queries go back, 0 stay",
        "",
        "query   newest batch  rolls back to  batches undone  state loaded",
        "ingest  3             batch 1        2 to 3          -",
    ]
    assert text[text.index("why\n") : text.index("\n\nversions undone")] == (
        "why\n"
        "└── ingest rolls back to batch 1: --to ingest@1\n"
        f"    └── {table} rolls back from version 3 to version 1: it holds batches 2 to 3 of ingest, which rolls back to batch 1\n"
        f"        └── totals rolls back from batch 3 to batch 1: it has read versions 2 to 3 of {table}, "
        "which rolls back to version 1"
    )
    assert f"{lake / 'bronze'}@2 to 3: STREAMING UPDATE, ingest batches 2 to 3\n" in text
    assert "topic clicks: ingest reads it" in text
    assert text.endswith("\nNothing was changed.\n")


def test_its_json_is_a_plan_in_any_encoding_of_the_output(lake, monkeypatch):
    (lake / "ingest").rename(lake / "zo\xeb")
    command = plan_command(lake, "totals@1")
    command[2] = str(lake / "zo\xeb")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii", errors="backslashreplace"))

    assert exit_code([*command, "--json"]) == 0
    plan = RewindPlan.model_validate_json(sys.stdout.buffer.getvalue())
    assert str(lake / "zo\xeb") in {each.folder for each in plan.queries}


def test_its_json_is_the_plan(lake, capsys):
    assert exit_code(plan_command(lake, "ingest@1", "--json")) == 0
    plan = RewindPlan.model_validate_json(capsys.readouterr().out)
    assert [(each.name, each.batch) for each in plan.queries] == [("ingest", 1), ("totals", 1)]
    assert all(len(each.digest) == 64 for each in (*plan.queries, *plan.tables))


def test_a_target_is_named_by_any_path_of_its_folder(lake, capsys, monkeypatch):
    monkeypatch.chdir(lake)
    for to in ("./ingest@1", "ingest/@1", f"{lake}/ingest/@1", (lake / "ingest").as_uri() + "@1"):
        assert exit_code(plan_command(lake, to)) == 0
        assert capsys.readouterr().out.startswith("to ingest@1: 2 queries go back")
    assert exit_code(plan_command(lake, "./bronze@1")) == 0
    assert exit_code(plan_command(lake, "./nowhere@1")) == 2


def test_a_declaration_is_taken_from_a_file(lake, capsys):
    declared = lake / "declared.yaml"
    declared.write_text("edges:\n  - {writer: totals, reader: ingest, over: a queue}\n")
    assert exit_code(plan_command(lake, "totals@1", "--declared", str(declared))) == 0
    assert "totals" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("to", "more", "code", "condition"),
    [
        ("ingest@9", [], 2, "CKPT_CONFIG_INVALID"),
        ("ingest@1", ["--declared", "nowhere.yaml"], 2, "CKPT_CONFIG_INVALID"),
        ("ingest@1", ["--table", "nowhere"], 3, "CKPT_CHECKPOINT_FOREIGN"),
        ("ingest@1", ["--properties", "x"], 2, "CKPT_CONFIG_INVALID"),
    ],
)
def test_a_mistake_has_its_exit_code_and_no_traceback(lake, capsys, monkeypatch, to, more, code, condition):
    monkeypatch.chdir(lake)
    assert exit_code(plan_command(lake, to, *more, "--json")) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert json.loads(printed.err)["error"]["condition"] == condition


def test_out_of_reach_names_the_nearest_target(lake, capsys):
    for number in range(2):
        (lake / "ingest" / "offsets" / str(number)).unlink()
    assert exit_code(plan_command(lake, "ingest@1")) == 5
    printed = capsys.readouterr().err
    assert printed.startswith("[CKPT_REWIND_OUT_OF_REACH] nothing at or before ingest@1 can be restored")
    assert "next: the nearest that can be reached: --to ingest@2" in printed


def test_a_broker_that_does_not_answer_is_reported(lake, capsys):
    declared = lake / "declared.yaml"
    declared.write_text("topics:\n  - {topic: clicks, written_by: [totals]}\n")
    more = ["--declared", str(declared), "--bootstrap-servers", "127.0.0.1:1"]
    assert exit_code(plan_command(lake, "ingest@1", *more)) == 8
    assert capsys.readouterr().err.startswith("[CKPT_SOURCE_INVALID] topic clicks:")


def test_no_jvm_and_no_pyspark_session_is_needed(lake):
    """In a new process: neither Java's gateway nor PySpark's session is imported, nor the modules of other commands."""
    code = (
        "import sys; from spark_ckpt.cli.app import exit_code; "
        f"code = exit_code({plan_command(lake, 'ingest@1', '--json')!r}); "
        "loaded = {'pyspark.java_gateway', 'pyspark.sql.session', 'checkpoint_lab'} & set(sys.modules); "
        "sys.exit(code or (f'loaded {loaded}' if loaded else 0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_verb_can_be_loaded_alone_and_all_are_in_the_help(capsys):
    for verb in verbs():
        assert exit_code([verb.name, "--help"]) == 0
        assert f"spark-ckpt {verb.name}" in capsys.readouterr().out
    assert exit_code(["--help"]) == 0
    shown = capsys.readouterr().out
    assert [verb.name for verb in verbs() if f"  {verb.name} " not in shown] == []
    assert exit_code(["rewindd"]) == 2
    assert "No such command" in capsys.readouterr().err


# -- apply and undo ------------------------------------------------------------------------------------------------------


AT_ONCE = ("--watch-s", "0", "--settle-s", "0")


@pytest.fixture
def plan_file(lake: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert exit_code(plan_command(lake, "ingest@1", "--json")) == 0
    file = lake / "plan.json"
    file.write_text(capsys.readouterr().out)
    return file


@pytest.mark.parametrize("endless", ["inf", "1e300"])
@pytest.mark.parametrize("option", ["--watch-s", "--settle-s"])
def test_a_wait_without_an_end_is_refused(lake, plan_file, capsys, option, endless):
    assert exit_code(["rewind", "apply", str(plan_file), option, endless]) == 2
    assert "are seconds, such as 10" in capsys.readouterr().err


def test_a_plan_is_applied_and_its_steps_are_printed(lake, plan_file, capsys):
    assert exit_code(["rewind", "apply", str(plan_file), *AT_ONCE]) == 0
    text = capsys.readouterr().out
    assert text.startswith("rolled back: ingest@1\n")
    row = next(line.split() for line in text.splitlines() if line.startswith(str(lake / "bronze")))
    assert row[1:] == ["3", "1", "4", "0", "2"]
    assert "fix the cause, then start the queries" in text
    assert sorted(path.name for path in (lake / "ingest" / "offsets").iterdir()) == ["0", "1"]


def test_the_result_of_apply_is_a_typed_document(plan_file, capsys):
    assert exit_code(["rewind", "apply", str(plan_file), *AT_ONCE, "--json"]) == 0
    record = RewindRecord.model_validate_json(capsys.readouterr().out)
    assert (record.format, record.kind, record.phase.value) == (1, "apply", "done")
    assert exit_code(["rewind", "undo", str(plan_file), *AT_ONCE, "--json"]) == 0
    assert RewindRecord.model_validate_json(capsys.readouterr().out).kind == "undo"


def test_a_dry_run_prints_the_planned_steps(lake, plan_file, capsys):
    assert exit_code(["rewind", "apply", str(plan_file), "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("would be rolled back: ingest@1\n")
    assert text.endswith("Nothing was changed.\n")
    assert sorted(path.name for path in (lake / "ingest" / "offsets").iterdir()) == ["0", "1", "2", "3"]


def test_a_refusal_has_a_condition_and_a_code(lake, plan_file, capsys):
    (lake / "ingest" / "commits" / "3").unlink()
    assert exit_code(["rewind", "apply", str(plan_file), *AT_ONCE]) == 4
    assert "[CKPT_REWIND_STALE] ingest is not as it was planned for" in capsys.readouterr().err


def test_undo_without_an_applied_plan_is_refused(plan_file, capsys):
    assert exit_code(["rewind", "undo", str(plan_file), *AT_ONCE]) == 3
    assert "this plan was not carried out" in capsys.readouterr().err
