"""The code that people read is run as it stands."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.spark


def python_blocks(page: str) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL))


def test_the_readmes_job_and_the_state_page_run_as_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    orders = [
        {"customer": "ada", "amount": 4.5},
        {"customer": "bob", "amount": -1.0},
        {"customer": "ada", "amount": 6.0},
    ]
    (inbox / "1.json").write_text("".join(json.dumps(order) + "\n" for order in orders))
    names = {}

    exec(compile(python_blocks("README.md"), "README.md", "exec"), names)
    try:
        exec(compile(python_blocks("docs/state.md"), "docs/state.md", "exec"), names)

        assert names["table"].to_pydict()["total"] == [10.5]
        assert [row.customer for row in names["rich"].collect()] == ["ada"]
    finally:
        names["spark"].stop()
