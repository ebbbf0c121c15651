"""The next steps and the possible faults of one driver of the simulated job."""

from __future__ import annotations

from checkpoint_lab.spark_batches import Query
from checkpoint_lab.spark_driver import SparkDriver
from checkpoint_lab.spark_rows import OPERATORS
from checkpoint_lab.world import Choice
from spark_ckpt.connector import EpochOutput, StagedAhead
from spark_ckpt.coordination.ack_records import AcksDue
from spark_ckpt.coordination.messages import PublishEnded, RecordAcks

EVERY = 1_000
BATCHES = ((0, 0), (0, EVERY), (1, 1), (2, EVERY), (1, 0))
"""Size of a batch: rows of each source, segments of each edge."""


def work_of(number: int, driver: SparkDriver, rows: int) -> list[Choice]:
    """Return the next steps of the driver's threads. `number`: the driver's; `rows`: number of rows of each source."""
    found: list[Choice] = []
    if driver.storing:
        found += [("store", number, how) for how in ("ok", "slow")]
    elif driver.busy:
        # the schedule draws if rows were waiting when the query started
        found += [("coordinate", number, behind) for behind in ((True, False) if driver.query is None else (False,))]
    for sink, lane in driver.lanes.items():
        if lane.now is not None:
            found.append(("publish", number, sink, "ok"))
        elif lane.waiting:
            found.append(_next_of(number, sink, lane.waiting[0]))
    query = driver.query
    if query is not None and query.planned is not None:
        found.append(("run", number, "once"))
    elif query is not None and query.news(rows):
        found += _plans(number, query, rows)
    if driver.sweeper.busy:
        found.append(("sweep", number))
    if driver.trash:
        found.append(("delete", number))
    return found


def _next_of(number: int, sink: str, asked: EpochOutput | StagedAhead | None) -> Choice:
    """Return a publisher's next step for the head of its queue."""
    if asked is None:
        return ("drop", number, sink)
    return ("ask", number, sink) if isinstance(asked, EpochOutput) else ("send", number, sink, "ok")


def _plans(number: int, query: Query, rows: int) -> list[Choice]:
    marker, behind = query.seen < len(query.markers), query.arrived(rows)
    return [
        ("plan", number, most, segments)
        for most, segments in BATCHES
        if marker or (most and behind) or (segments and query.waiting)
    ]


def faults_of(number: int, driver: SparkDriver) -> list[Choice]:
    """Return refusals, lost answers and tasks that run twice."""
    found: list[Choice] = [("store", number, how) for how in ("fail", "silent") if driver.storing]
    found += [
        ("publish", number, sink, how)
        for sink, lane in driver.lanes.items()
        if lane.now is not None
        for how in ("fail", "silent")
    ]
    found += [
        ("delay", number, sink, "late")
        for sink, lane in driver.lanes.items()
        if driver.sends_ahead and lane.now is not None
    ]
    found += [
        ("send", number, sink, how)
        for sink, lane in driver.lanes.items()
        if lane.now is None and lane.waiting and isinstance(lane.waiting[0], StagedAhead)
        for how in ("fail", "silent")
    ]
    if driver.query is not None and driver.query.planned:
        found.append(("run", number, "twice"))
    return found


def missed_by(number: int, driver: SparkDriver) -> list[Choice]:
    """Return the missed barriers: a key group of one operator does not get the barrier."""
    reached = driver.query is not None and driver.query.barrier is not None
    return [("miss", number, operator) for operator in OPERATORS if reached]


def is_recorded(driver: SparkDriver, sink: str, epoch: int) -> bool:
    """Return True if the driver knows that the sink has the epoch, and all due acknowledgements are recorded."""
    owed = any(each <= epoch for name, owed in driver.core.unpublished.items() if name == sink for each in owed)
    said = any(isinstance(each, PublishEnded) and each.sink == sink for each in (*driver.inbox, *driver.answers))
    records = any(isinstance(each, RecordAcks) for each in driver.effects)
    waits = driver.deciding.unrecorded and any(isinstance(each, AcksDue) for _, each in driver.timers)
    return driver.query is not None and not (owed or said or records or waits or driver.lanes[sink].now)
