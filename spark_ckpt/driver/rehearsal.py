"""One micro-batch of the job's own plan, on scratch: what a first batch costs more than later ones is then behind a standby.

It reads the job's sources from the newest epoch on, restores the epoch's state and runs the user's functions. Rows are staged in a
folder that is removed, no barrier is injected, so no state is written, and nobody is told how far it came: nothing of it can
be decided or published. A source keeps what it consumes when it is asked for a cursor, which it is not here.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from spark_ckpt.coordination.incarnation import IncarnationCore
from spark_ckpt.coordination.markers import OPEN, ControlMarkers
from spark_ckpt.driver.control_source import Control
from spark_ckpt.driver.query_failures import failure_of, is_running
from spark_ckpt.driver.stage import Stage
from spark_ckpt.driver.stage_query import stop_within
from spark_ckpt.store.location import Location
from spark_ckpt.store.restore import RecoveryPoint

if TYPE_CHECKING:
    from spark_ckpt.driver.job_plan import JobPlan
    from spark_ckpt.store.records import Manifest

_log = logging.getLogger(__name__)
_NEVER_MS = 24 * 3600 * 1000
_POLL_S = 0.05
_STOP_S = 10.0


def runs_here(plan: JobPlan) -> bool:
    """Whether tasks run on the driver's host and nowhere else."""
    return str(plan.spark.sparkContext.master).startswith("local")


def scratch_for(plan: JobPlan, name: str) -> Location:
    """A folder that driver and executors share, for what nobody needs behind a rehearsal."""
    return Location(str(plan.cache / name)) if runs_here(plan) else plan.run_folder().child(name)


def stage_behind(plan: JobPlan, base: Manifest, incarnation: int, levels: Path, scratch: Location) -> Stage:
    """The job's stage as incarnation number `incarnation` would begin it behind `base`; whatever its tasks write is written below
    `scratch`, but local levels of state, which go to `levels`."""
    ours = _on_scratch(plan, scratch)
    key_groups = ours.key_groups(base)
    point = RecoveryPoint(incarnation, base, base.epoch, "rehearsal")
    core, control = IncarnationCore(ours.shape(key_groups), point), Control()
    control.inject(ControlMarkers().offer(OPEN, 0))
    return Stage(ours, incarnation, core, control, {}, levels, key_groups)


def can_rehearse(plan: JobPlan, base: Manifest) -> bool:
    """Whether nothing of a batch would be written into the store. What is put on an edge is written there; a source without a
    cursor has not begun."""
    return not plan.edges and all(node.name in base.cursors for node in plan.sources)


def rehearse(stage: Stage, starting: threading.Lock, is_over: Callable[[], bool]) -> bool:
    """Run one batch; whether it was run to its end. `starting`: held while the session's settings are the query's. Raises what is
    wrong with the plan; what a batch fails with is told, for the job's driver meets it, too."""
    done = threading.Event()
    with starting:
        if is_over():
            return False
        query = stage.start(True, lambda *_: done.set(), is_over)
    try:
        while not is_over() and not done.wait(_POLL_S):
            if not is_running(query):
                _log.warning("the rehearsed batch failed: %s", failure_of(query))
                break
    finally:
        stop_within(query, _STOP_S)
    return done.is_set()


def remove(scratch: Location) -> None:
    """Nothing is left of what was written there."""
    if scratch.local is not None:
        shutil.rmtree(scratch.local, ignore_errors=True)
    else:
        scratch.delete([info.path for info in scratch.list()])


def _on_scratch(plan: JobPlan, scratch: Location) -> JobPlan:
    unseen = {"run_dir": scratch.child("runs").uri, "trigger_ms": _NEVER_MS, "trace_dir": None}
    stages = {
        name: replace(stage, root=scratch.child("out", name).uri, storage_options=scratch.storage_options)
        for name, stage in plan.stage_plans.items()
    }
    # Another name: Spark finds the running query by it.
    return replace(plan, job=f"{plan.job}/rehearsal", config=plan.config.model_copy(update=unseen), stage_plans=stages)
