"""The connector of docs/writing-a-connector.md, installed as the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import spark_ckpt

ROOT = Path(spark_ckpt.__file__).parents[1]
PAGE = ROOT / "docs" / "writing-a-connector.md"
PATHS = (str(ROOT), str(ROOT / "connectors"))


def install(site: Path) -> None:
    """Put the page's files into a folder, with the metadata that pip makes of its pyproject.toml."""
    text = PAGE.read_text()
    for name, code in re.findall(r"```python\n# (\S+)\n(.*?)```", text, re.DOTALL):
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_text(code)
    project = tomllib.loads(re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[0])["project"]
    info = site / "acme_ledger-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    (group, entries), *_ = project["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {place}" for name, place in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """This Python with the folder on its path, and that of its workers."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(site), *PATHS))}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=site, env=environment, capture_output=True, text=True, timeout=300, check=False)
