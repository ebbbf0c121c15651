"""A view of a run in a terminal or notebook: rows per second, lag, newest epoch and its alignment, and outages."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from spark_ckpt.connector import Json
from spark_ckpt.epochs.records import EpochBrief
from spark_ckpt.json_values import mapping, number
from spark_ckpt.wording import counted

Record = Mapping[str, Json]
_RECENT = 20
_BARS = "▁▂▃▄▅▆▇█"


def follow(
    records: Callable[[], Sequence[Record]],
    lag: Callable[[], Mapping[str, int]],
    is_over: Callable[[float], bool],
    console: Console | None = None,
    seconds: float | None = None,
    every_s: float = 0.5,
) -> None:
    """Show a run until it is over, for at most `seconds`.

    `records` and `lag` are called for each update. `is_over(wait_s)` waits at most so long and returns True at the end.
    A terminal or notebook shows one view that updates every `every_s` seconds; other outputs get only the last one.
    """
    screen = console or Console()
    deadline_s = None if seconds is None else time.monotonic() + seconds
    with Live(console=screen, auto_refresh=False, transient=False) as live:
        over = False
        while not over and (deadline_s is None or time.monotonic() < deadline_s):
            over = is_over(every_s)  # before the view, so that the last one shows the end
            live.update(picture(records(), lag(), over), refresh=True)
    if not (screen.is_terminal or screen.is_jupyter):
        screen.line()  # other outputs: `Live` does not end its last line


def picture(records: Sequence[Record], lag: Mapping[str, int], over: bool = False) -> RenderableType:
    """Return the view. `records`: `run.recentProgress`, oldest first. `lag`: rows by source, of sources that can
    count them.
    """
    if not records:
        return Text("ended before its first micro-batch" if over else "starting: no micro-batch yet")
    last = records[-1]
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(last, records, lag, over):
        facts.add_row(Text(name, style="dim"), Text(value))
    rates = [number(each.get("processedRowsPerSecond")) for each in records[-_RECENT:]]
    heading = Text(f"job {last.get('job')}, incarnation {last.get('incarnation')}", style="bold")
    return Group(heading, facts, Text(f"rows/s  {sparkline(rates)}"))


def _facts(last: Record, records: Sequence[Record], lag: Mapping[str, int], over: bool) -> list[tuple[str, str]]:
    totals, took = mapping(last.get("totals")), mapping(last.get("durationMs"))
    shown = [
        ("state", "ended" if over else _waits(last)),
        ("rows/s", f"{rate(records):,.0f}"),
        ("rows", f"{number(totals.get('numInputRows')):,.0f} in, {number(totals.get('numOutputRows')):,.0f} out"),
        ("epoch", f"{last.get('epoch')} committed"),
        ("batch", f"{last.get('batchId')}, {number(took.get('batch')) / 1000:.2f} s"),
    ]
    parts_ms = mapping(last.get("epochPartsMs"))
    if parts_ms:
        shown.append(("alignment", ", ".join(f"{part} {number(ms) / 1000:.2f} s" for part, ms in parts_ms.items())))
    if lag:
        shown.append(("lag", ", ".join(f"{source} {rows:,}" for source, rows in sorted(lag.items()))))
    left_out = {name: number(totals.get(name)) for name in ("late", "rejected")}
    shown += [(name, counted(int(count), "row")) for name, count in left_out.items() if count]
    return shown


def _waits(last: Record) -> str:
    outage = mapping(last.get("outage"))
    return f"waits: {outage.get('condition')}, {number(outage.get('waited_ms')) / 1000:.0f} s" if outage else "runs"


def rate(records: Sequence[Record]) -> float:
    """Return the rows per second of processing over the newest 20 records."""
    newest = records[-_RECENT:]
    took_ms = sum(number(mapping(each.get("durationMs")).get("batch")) for each in newest)
    return sum(number(each.get("numInputRows")) for each in newest) * 1000 / took_ms if took_ms else 0.0


def epoch_rate(epochs: Sequence[EpochBrief]) -> float:
    """Return the rows per second over the newest 20 epochs; 0 for fewer than two."""
    newest = list(epochs)[-_RECENT:]
    took_ms = newest[-1].created_ms - newest[0].created_ms if newest else 0
    # The rows of the oldest one came before the time that is measured.
    return sum(each.rows_in for each in newest[1:]) * 1000 / took_ms if took_ms > 0 else 0.0


def sparkline(values: Sequence[float]) -> str:
    """Return one bar for each value, the greatest at full height."""
    top = max(values, default=0.0)
    return "".join(_BARS[round(value / top * (len(_BARS) - 1))] if top else _BARS[0] for value in values)
