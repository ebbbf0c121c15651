"""Partial recovery: of the stages of a program only one that failed restarts, the others continue.

A reader reads rows of committed epochs only. So a failure undoes nothing that another stage has read, and the set that
restarts is the failed stage alone. Its ancestors need not send again, as they do in the partial recovery of asynchronous
barrier snapshots: the edge keeps their rows. A reader never reads a row twice, because its position on the edge is part
of its epoch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from spark_ckpt.epochs.identity import CONF_KEYS

_START = re.compile(r"job\.start\((?=restore=|accept_)")


class StageStatus(StrEnum):
    """A stage at the restart of another one."""

    RESTARTED = "restarted"
    WENT_ON = "went on"
    NOT_RUNNING = "not running"


def recovery_text(stages: Mapping[str, StageStatus]) -> str:
    """Return the sentence for the user: "restarted: second; went on: first, third"."""
    parts = []
    for status in StageStatus:
        names = ", ".join(name for name, found in stages.items() if found is status)
        if names:
            parts.append(f"{status}: {names}")
    return "; ".join(parts)


def of_stage(hint: str, stage: str) -> str:
    """Return the hint of an error with the starts of this stage: `job.start` refuses a program with stages."""
    said = _START.sub(f"job.start_stages({stage!r}, ", CONF_KEYS.sub("", hint))
    said = said.replace("job.start()", f"job.start_stages({stage!r})")
    return said.replace("job.start(standby=True)", "Job(..., standby=True)")
