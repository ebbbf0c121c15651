"""With any damaged file a plan is made or a typed error is raised, and no file changes."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

from rewind_kit import content_of, planned, unpacked

from spark_ckpt.errors import CkptError

DAMAGES = int(os.environ.get("REWIND_DAMAGES", "25"))
TIME = "2026-11-23T01:00:00Z"
"""Long before the batches' own timestamps; the commit files are as new as this test."""
QUERIES = ("hdfs_snap", "rocks_log", "rocks_v2", "join", "rate", "filesink")


def cut(content: bytes, draw: Random) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def flipped(content: bytes, draw: Random) -> bytes:
    at = draw.randrange(len(content)) if content else 0
    return content[:at] + bytes([draw.randrange(256)]) + content[at + 1 :]


def other_value(content: bytes, draw: Random) -> bytes:
    """A JSON line with one value of another kind."""
    lines = content.decode(errors="replace").split("\n")
    at = draw.randrange(len(lines))
    try:
        value = json.loads(lines[at])
    except ValueError:
        return b"\n".join([content, b"{}"])
    if isinstance(value, dict) and value:
        inner = value[draw.choice(sorted(value))]
        target = inner if isinstance(inner, dict) and inner and draw.random() < 0.7 else value
        target[draw.choice(sorted(target))] = draw.choice(
            [None, -1, "x", [], {}, 2**70, 10**15, True, [[None]], {"0": [["x"]]}]
        )
    lines[at] = json.dumps(value)
    return "\n".join(lines).encode()


WAYS: list[Callable[[bytes, Random], bytes]] = [cut, flipped, other_value, lambda content, draw: b""]


def damaged(root: Path, draw: Random) -> str:
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.suffix != ".parquet")
    small = [path for path in files if path.suffix not in (".sst", ".crc")]
    path = draw.choice(small)
    if draw.random() < 0.15:
        path.unlink()
    else:
        path.write_bytes(draw.choice(WAYS)(path.read_bytes(), draw))
    return str(path.relative_to(root))


def test_one_file_in_any_state_leads_to_a_plan_or_a_typed_error(tmp_path):
    ended: Counter[str] = Counter()
    for seed in range(DAMAGES):
        draw = Random(seed)
        root = tmp_path / str(seed)
        made = unpacked(root)
        where = damaged(made, draw)
        before = content_of(made)
        folders = [made / "ckpt" / name for name in QUERIES]
        declared = {"folders": [{"path": str(made / "tables" / "filesink"), "written_by": "filesink"}]}
        try:
            to = draw.choice(["rocks_log@4", "rocks_v2@5", "hdfs_snap@5", TIME, TIME])
            planned(folders, to, [made / "tables" / "a2"], declared)
            ended["plan"] += 1
        except CkptError as error:
            ended[error.condition] += 1
        except Exception as error:
            error.add_note(f"seed {seed}, {where}")
            raise
        assert content_of(made) == before
    assert ended["plan"] > DAMAGES / 4
    assert ended["CKPT_CHECKPOINT_DAMAGED"] > 0
