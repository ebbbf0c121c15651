"""Code on the pages runs as printed."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from integration_tests.docs.printed import Pages, alike
from integration_tests.spark import end_jvm
from spark_ckpt.cli.app import exit_code

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.spark


def run_as_shown(page: str, folder: Path, monkeypatch, caplog) -> Pages:
    """Run a page and compare its output. Return its names.

    A machine that starts a Python worker too slowly costs an incarnation, by design. Its number is in the output, so such a run is
    repeated in another folder.
    """
    text = (ROOT / page).read_text()
    for attempt in range(3):
        (folder / str(attempt)).mkdir()
        monkeypatch.chdir(folder / str(attempt))
        caplog.clear()
        pages = Pages()
        printed = pages.again(text)
        if not any("the next begins in" in record.getMessage() for record in caplog.records):
            break
    assert alike(printed) == alike(text)
    return pages


def python_blocks(page: str) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL))


def test_the_readmes_job_has_the_output_of_the_readme_and_the_state_page_runs(tmp_path, monkeypatch, caplog):
    """Write the output again with: python -m integration_tests.docs.printed README.md"""
    pages = run_as_shown("README.md", tmp_path, monkeypatch, caplog)
    try:
        pages.names["store"] = "store"
        pages.again((ROOT / "docs" / "state.md").read_text())

        assert sorted(pages.names["table"].to_pydict()["customer"]) == ["ada", "bob"]
        assert [row.customer for row in pages.names["rich"].collect()] == ["ada"]
    finally:
        pages.names["spark"].stop()


@pytest.mark.long  # in the gate: the README
def test_the_page_about_graphs_runs_as_written(tmp_path, capsys):
    for folder, amounts in (("inbox", (4.5, 6.0)), ("refund_inbox", (1.5,))):
        (tmp_path / folder).mkdir()
        rows = [{"customer": "ada", "amount": amount} for amount in amounts]
        (tmp_path / folder / "1.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "links_inbox").mkdir()
    (tmp_path / "links_inbox" / "1.json").write_text('{"a": 3, "b": 2}\n{"a": 2, "b": 1}\n{"a": 7, "b": 8}\n')
    tables = (
        "table",
        "spent_table",
        "large_table",
        "matched_table",
        "labels_table",
        "shares_table",
        "settled_table",
        "delivered_table",
        "given_up_table",
    )
    names = {name: str(tmp_path / name) for name in ("store", "inbox", "refund_inbox", "links_inbox", *tables)}

    exec(compile(python_blocks("docs/graphs.md"), "docs/graphs.md", "exec"), names)
    try:
        drawn = "\n".join(line.rstrip() for line in capsys.readouterr().out.strip().splitlines())
        assert f"```\n{drawn}\n```" in (ROOT / "docs/graphs.md").read_text()
        assert DeltaTable(names["table"]).to_pyarrow_table().column("balance").to_pylist() == [9.0]
        assert sorted(DeltaTable(names["spent_table"]).to_pyarrow_table().column("total").to_pylist()) == [4.5, 10.5]
        assert DeltaTable(names["large_table"]).to_pyarrow_table().column("amount").to_pylist() == [6.0]
        matched = DeltaTable(names["matched_table"]).to_pyarrow_table().to_pylist()
        assert sorted((row["amount"], row["refund"]) for row in matched) == [(4.5, 1.5), (6.0, 1.5)]
        settled = DeltaTable(names["settled_table"]).to_pyarrow_table().to_pylist()
        assert settled == [{"customer": "ada", "due": 9.0, "bought": 2}]
        labels = DeltaTable(names["labels_table"]).to_pyarrow_table().to_pylist()
        last = {node: min(row["label"] for row in labels if row["node"] == node) for node in (1, 2, 3, 7, 8)}
        assert last == {1: 1, 2: 1, 3: 1, 7: 7, 8: 7}
        (shares,) = DeltaTable(names["shares_table"]).to_pyarrow_table().to_pylist()
        assert shares == {"customer": "ada", "largest": 6.0, "times": 1}
        for table, amount in (("delivered_table", 4.5), ("given_up_table", 6.0)):
            assert DeltaTable(names[table]).to_pyarrow_table().to_pylist() == [
                {"customer": "ada", "amount": amount, "attempt": 3}
            ]
    finally:
        names["spark"].stop()


@pytest.mark.long  # in the gate: the README
def test_the_page_about_operators_runs_as_written(tmp_path):
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "1.json").write_text(
        '{"customer": "ada", "amount": 4.5}\n{"customer": "bob", "amount": 1}\n{"customer": "ada", "amount": 2}\n'
    )
    (tmp_path / "click_inbox").mkdir()
    clicks = [("1", "home", "08:10"), ("1", "home", "08:10"), ("2", "home", "08:30"), ("3", "home", "10:00")]
    lines = [f'{{"id": "{id}", "page": "{page}", "at": "2024-07-01 {at}:00"}}\n' for id, page, at in clicks]
    (tmp_path / "click_inbox" / "1.json").write_text("".join(lines))
    folders = ("store", "inbox", "totals_table", "spent_table", "click_inbox", "views_table", "once_table")
    names = {name: str(tmp_path / name) for name in folders}

    exec(compile(python_blocks("docs/operators.md"), "docs/operators.md", "exec"), names)
    try:
        for name in ("totals_table", "spent_table"):
            rows = DeltaTable(names[name]).to_pyarrow_table().to_pylist()
            assert {row["customer"]: row["total"] for row in rows} == {"ada": 6.5, "bob": 1.0}
        views = DeltaTable(names["views_table"]).to_pyarrow_table().to_pylist()
        assert [(row["page"], row["window"]["start"].hour, row["n"]) for row in views] == [("home", 8, 3)]
        once = DeltaTable(names["once_table"]).to_pyarrow_table()
        assert sorted(once.column("id").to_pylist()) == ["1", "2", "3"]
    finally:
        names["spark"].stop()


@pytest.mark.long  # in the gate: integration_tests/runtime/test_sparks_operators.py
def test_the_page_about_sparks_operators_runs_as_written(tmp_path):
    orders = [("1", "08:10", 4.0), ("1", "08:10", 4.0), ("2", "08:30", 2.0), ("3", "12:00", 1.0), ("4", "12:00", 1.0)]
    payments = [("1", "08:20"), ("9", "12:00")]
    lines = {
        "orders_inbox": [
            {"id": id, "customer": "ada", "amount": amount, "at": f"2024-07-01 {at}:00"} for id, at, amount in orders
        ],
        "payments_inbox": [{"order_id": id, "paid": 4.0, "paid_at": f"2024-07-01 {at}:00"} for id, at in payments],
    }
    for folder, rows in lines.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = {name: str(tmp_path / name) for name in ("store", "hourly_table", "matched_table", *lines)}

    exec(compile(python_blocks("docs/sparks-operators.md"), "docs/sparks-operators.md", "exec"), names)
    try:
        hours = DeltaTable(names["hourly_table"]).to_pyarrow_table().to_pylist()
        assert [(row["customer"], row["window"]["start"].hour, row["total"]) for row in hours] == [("ada", 8, 6.0)]
        matched = DeltaTable(names["matched_table"]).to_pyarrow_table().to_pylist()
        assert sorted((row["id"], row["paid"]) for row in matched) == [("1", 4.0), ("1", 4.0), ("2", None)]
    finally:
        names["spark"].stop()


@pytest.mark.long
def test_the_porting_pages_jobs_run_as_written(tmp_path):
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "any-name.json").write_text(
        '{"customer": "ada", "amount": 4.5, "at": "2024-03-10 02:30:00"}\n'
    )
    names = {name: str(tmp_path / name) for name in ("store", "inbox", "table", "archive")}

    end_jvm()  # a running Java cannot load Delta's jars
    exec(compile(python_blocks("docs/porting.md"), "docs/porting.md", "exec"), names)
    try:
        assert DeltaTable(names["table"]).to_pyarrow_table().column("customer").to_pylist() == ["ada"]
        customers = DeltaTable(f"{names['table']}-customers").to_pyarrow_table()
        assert customers.column("amount").to_pylist() == [4.5]
        values = DeltaTable(f"{names['table']}-rate").to_pyarrow_table().column("value").to_pylist()
        assert sorted(values) == list(range(len(values)))
        assert values
    finally:
        names["spark"].stop()


@pytest.mark.long
def test_the_migrating_page_moves_a_query_as_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = "docs/migrating.md"
    plain, moved = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    [command] = re.findall(r"^\$ spark-ckpt (.*)$", (ROOT / page).read_text(), re.MULTILINE)
    names = {name: str(tmp_path / name) for name in ("orders_table", "checkpoint", "totals_table", "store")}
    schema = pa.schema([("customer", pa.string()), ("amount", pa.float64())])
    append(names["orders_table"], schema, [("ada", 4.5), ("bob", 2.0)])

    end_jvm()  # a running Java cannot load Delta's jars
    try:
        exec(compile(plain, page, "exec"), names)
        append(names["orders_table"], schema, [("ada", 6.0)])
        words = {"CHECKPOINT": names["checkpoint"], "STORE": names["store"]}
        assert exit_code([*(words.get(word, word) for word in command.split()), "--watch-s", "0"]) == 0
        exec(compile(moved, page, "exec"), names)

        rows = DeltaTable(names["totals_table"]).to_pyarrow_table().to_pylist()
        assert sorted((row["customer"], row["total"]) for row in rows) == [("ada", 4.5), ("ada", 10.5), ("bob", 2.0)]
    finally:
        end_jvm()


def append(table, schema, rows):
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    write_deltalake(table, pa.table(columns, schema=schema), mode="append")


@pytest.mark.long  # in the gate: the README; output of the commands in tests/cli
@pytest.mark.parametrize("name", ["quickstart", "tutorial"])
def test_a_page_has_the_output_of_its_programs(name, tmp_path, monkeypatch, caplog):
    """Write the output again with: python -m integration_tests.docs.printed docs/tutorial.md"""
    run_as_shown(f"docs/{name}.md", tmp_path, monkeypatch, caplog).names["spark"].stop()


def test_another_output_than_the_page_shows_is_found():
    page = "```python\nprint(1)\n```\n\nIt prints:\n\n```text\n2\n```\n"
    assert alike(Pages().again(page)) != alike(page)
    assert alike("took 0.24 s") == alike("took  1.3 s") != alike("took 2 rows")
