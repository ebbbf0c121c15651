"""The connector of docs/writing-a-connector.md in a job on Spark, twice, as on the page."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.docs.installed_page import install, run

pytestmark = pytest.mark.spark
TWICE = """
import os, runpy
runpy.run_path("job.py")
os.rename("inbox/later.tmp", "inbox/000002.jsonl")
runpy.run_path("job.py")
"""


@pytest.mark.long
def test_the_pages_job_continues_where_it_ended(tmp_path: Path) -> None:
    install(tmp_path)
    (tmp_path / "inbox").mkdir()
    for number, name in ((1, "000001.jsonl"), (2, "later.tmp")):
        rows = [{"id": 10 * number + k, "name": f"name {k}"} for k in range(10)]
        (tmp_path / "inbox" / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    done = run(tmp_path, "-c", TWICE, "inbox", "ledger.db", "store")

    assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as database:
        found = sorted(id for (id,) in database.execute("SELECT id FROM entries"))
    assert found == [*range(10, 30, 2)]
