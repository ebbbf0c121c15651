"""Every example runs as its first lines say, on its own input, and has the output that it promises."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

import spark_ckpt as ckpt
from integration_tests.spark import connected_session
from spark_ckpt.cli.app import exit_code
from spark_ckpt.errors import SinkInvalid

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
FIRST_S = 1_700_000_000

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Every program gets this session when it asks for one."""
    yield from connected_session()


class Example:
    """A program and a copy of its input; only the first files are present at first."""

    def __init__(self, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.program, self.folder = EXAMPLES / f"{name}.py", folder
        self._argv = monkeypatch
        shutil.copytree(EXAMPLES / "inputs" / name, folder)
        for number, path in enumerate(sorted(folder.rglob("*.*"))):
            os.utime(path, (FIRST_S + number,) * 2)
        self._later = {
            path: path.rename(folder / f"later-{path.parent.name}-{path.name}") for path in folder.glob("*/[2-9].*")
        }

    def run(self, *words: str) -> None:
        """Run `python NAME.py FOLDER WORDS drain`."""
        self._argv.setattr(sys, "argv", [str(self.program), str(self.folder), *words, "drain"])
        runpy.run_path(str(self.program), run_name="__main__")

    def more(self) -> None:
        """Add the rest of the input."""
        for path, aside in self._later.items():
            aside.rename(path)

    def rows(self, table: str) -> list[tuple[object, ...]]:
        """Rows that a reader of an output table sees."""
        return read(str(self.folder / table))


def read(table: str) -> list[tuple[object, ...]]:
    found = pa.table(QueryBuilder().register("t", DeltaTable(table)).execute("select * from t").read_all())
    return sorted((tuple(map(plain, row.values())) for row in found.to_pylist()), key=repr)


def plain(value: object) -> object:
    """Times without their zone, which is UTC."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


@pytest.fixture
def example(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Example:
    monkeypatch.setattr("spark_ckpt.session", lambda *names: spark)
    return Example(request.param, tmp_path / "it", monkeypatch)


@pytest.fixture(autouse=True)
def ends(spark: SparkSession) -> Iterator[None]:
    """Wait for the end of a program's job."""
    yield
    assert spark.streams.active == []


def of(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("example", [name], indirect=True)


def may(hour: int, minute: int, day: int = 1) -> datetime:
    return datetime(2024, 5, day, hour, minute)


@pytest.mark.long  # in the gate: integration_tests/runtime/test_graphs.py
def test_the_page_about_changes_runs_as_written(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Add a column to state and table; then start the older program, which no longer fits."""

    def arrived(*orders: tuple[str, float]) -> None:
        number = sum(1 for _ in (tmp_path / "inbox").iterdir())
        rows = [json.dumps({"customer": customer, "amount": amount}) for customer, amount in orders]
        (tmp_path / "inbox" / f"{number}.json").write_text("\n".join(rows))

    monkeypatch.setattr("spark_ckpt.session", lambda *names: spark)
    (tmp_path / "inbox").mkdir()
    arrived(("ada", 4.0), ("bob", 1.0), ("ada", 6.0))
    names = {name: str(tmp_path / name) for name in ("store", "inbox", "table")} | {"arrived": arrived}
    page = (EXAMPLES.parent / "changing.md").read_text()

    exec(compile("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), "changing.md", "exec"), names)

    rows = read(names["table"])
    assert rows == [("ada", 10.0, None), ("ada", 12.0, 1), ("bob", 1.0, None)]
    state = ckpt.read_state(names["store"], "totals").sort_by("customer")
    assert (state["total"].to_pylist(), state["orders"].to_pylist()) == ([12.0, 1.0], [1, None])
    with pytest.raises(SinkInvalid, match="orders"):
        names["described"](names["add_up"], "customer string, total double", "total double").start(availableNow=True)


@pytest.mark.long  # in the gate: integration_tests/runtime/test_deduplication_is_sparks.py
@of("deduplicate")
def test_a_payment_with_a_repeated_notice_counts_once(example: Example) -> None:
    example.run()
    assert example.rows("payments") == [("p1", "ada", 4.5), ("p2", "bob", 7.0)]

    example.more()
    example.run()
    assert example.rows("payments") == [("p1", "ada", 4.5), ("p2", "bob", 7.0), ("p3", "ada", 1.5)]


@pytest.mark.long  # in the gate: sessions in integration_tests/runtime/test_group_state_is_sparks.py
@of("sessions")
def test_a_visit_ends_half_an_hour_after_its_last_click(example: Example) -> None:
    example.run()
    assert example.rows("visits") == [], "no row has come after the half hour"

    example.more()
    example.run()
    assert example.rows("visits") == [("ada", may(9, 0), may(9, 20), 3), ("bob", may(9, 5), may(9, 25), 2)]


@pytest.mark.long  # in the gate: static joins in integration_tests/runtime/test_jobs.py
@of("enrich")
def test_an_order_has_its_price_and_one_without_is_reported(example: Example) -> None:
    example.run()
    assert example.rows("orders") == [("rice", 3, 3, 2.0, 6.0), ("tea", 1, 2, 3.5, 7.0)]
    assert example.rows("unknown") == [(2, "soap")]

    (example.folder / "prices" / "2.csv").write_text("product,price\nsoap,1.5\n")
    example.more()
    example.run()
    assert ("soap", 4, 2, 1.5, 3.0) in example.rows("orders")


@pytest.mark.long  # in the gate: integration_tests/runtime/test_stream_joins.py
@of("match_payments")
def test_an_order_is_joined_with_its_payments_and_an_unpaid_one_is_reported(example: Example) -> None:
    example.run("10 milliseconds")
    assert example.rows("paid") == [(1, "ada", 30.0, 10.0), (1, "ada", 30.0, 20.0)]

    example.more()  # by then the payment's time limit is over
    example.run("10 milliseconds")
    assert example.rows("paid")[2:] == [(4, "joe", 8.0, 8.0)]
    assert example.rows("unpaid") == [(2, "bob", 20.0)]


@pytest.mark.long  # in the gate: integration_tests/runtime/test_loops.py
@of("route_orders")
def test_an_order_goes_to_the_first_warehouse_that_has_enough_and_is_refused_after_three(example: Example) -> None:
    example.run()
    assert example.rows("decided") == [(1, "Bonn", 1, "reserved"), (2, "Ulm", 3, "reserved"), (3, "Ulm", 3, "refused")]


@pytest.mark.long  # in the gate: integration_tests/runtime/test_loops.py
@of("fraud_rings")
def test_accounts_are_in_one_ring_if_cards_lead_from_one_to_the_other(example: Example) -> None:
    example.run()
    assert newest_rings(example) == {
        "ada": "account ada",
        "bob": "account ada",
        "eve": "account eve",
        "joe": "account eve",
    }

    example.more()  # eve also has one of ada's cards
    example.run()
    assert set(newest_rings(example).values()) == {"account ada"}


def newest_rings(example: Example) -> dict[object, object]:
    """A label only decreases."""
    return dict(sorted(example.rows("rings"), reverse=True))  # type: ignore[arg-type]


@pytest.mark.long  # in the gate: integration_tests/runtime/test_windows_are_sparks.py
@of("windows")
def test_a_late_view_is_left_out_and_counted(example: Example, capsys: pytest.CaptureFixture[str]) -> None:
    example.more()
    example.run()
    assert capsys.readouterr().out.splitlines() == ["1 row came too late"]
    newest = {(country, window["start"]): views for country, window, views in example.rows("views")}
    assert newest == {  # counts only grow
        ("DE", may(9, 0)): 3,  # one of them came late, but before the watermark had moved
        ("DE", may(9, 20)): 1,
        ("FR", may(9, 0)): 1,
        ("FR", may(9, 20)): 2,
    }


@pytest.mark.long  # in the gate: merges in integration_tests/delta/test_delta_spark.py
@of("customer_history")
def test_a_customer_is_one_row_and_every_version_has_its_times(example: Example) -> None:
    example.more()
    example.run()
    january, march = datetime(2024, 1, 1), datetime(2024, 3, 1)
    assert example.rows("customers") == [("ada", "Kiel", march), ("bob", "Ulm", january)]
    assert example.rows("history") == [
        ("ada", "Bonn", january, march), ("ada", "Kiel", march, None), ("bob", "Ulm", january, None),
    ]  # fmt: skip


@of("clean")
def test_a_line_that_is_no_reading_is_among_the_rejects(example: Example) -> None:
    example.run()
    assert example.rows("readings") == [
        ("s1", 21.5, may(9, 0), may(9, 0).date()), ("s1", 22.0, may(9, 0, day=2), may(9, 0, day=2).date()),
    ]  # fmt: skip
    assert [place for _, place, _ in example.rows("rejects")] == [
        '{"file": "1.json", "line": 3}', '{"file": "1.json", "line": 2}',
    ]  # fmt: skip


@pytest.mark.long  # in the gate: integration_tests/survival/test_restore.py
@of("points")
def test_a_restore_of_the_savepoint_undoes_a_wrong_rule(example: Example) -> None:
    example.run("1")
    assert exit_code(["savepoint", "add", str(example.folder / "store"), "before-bonus"]) == 0
    example.more()
    example.run("100")
    assert example.rows("points") == [("ada", 110.0), ("bob", 5.0)]

    example.run("1", "before-bonus")
    assert example.rows("points") == [("ada", 11.0), ("bob", 5.0)]
