"""Text of numbers, intervals and tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.report.runs import Spread

NONE = "-"


def number(value: float | None) -> str:
    """At least three significant digits, with separated thousands."""
    if value is None:
        return NONE
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def times(value: float | None) -> str:
    """A ratio."""
    return NONE if value is None else f"{number(value)}x"


def percent(value: float | None) -> str:
    """A share."""
    return NONE if value is None else f"{value * 100:.1f} %"


def seconds(value: float | None) -> str:
    """Text of a number of seconds."""
    return NONE if value is None else f"{number(value)} s"


def seconds_of_ms(value: float | None) -> str:
    """Text in seconds of a number of milliseconds."""
    return NONE if value is None else seconds(value / 1000)


def milliseconds(value: float | None) -> str:
    """Text of a number of milliseconds."""
    return NONE if value is None else f"{number(value)} ms"


def share(value: float) -> str:
    """Share of keys with as few digits as necessary."""
    return f"{value * 100:g} %"


def keys(count: float) -> str:
    """A short number of keys."""
    return f"{count / 1e6:g}M" if count >= 1e6 else f"{count / 1e3:g}k" if count >= 1e3 else f"{count:g}"


def spread(value: Spread | None, written: Callable[[float | None], str] = number) -> str:
    """`median (least-most)`; the median alone for a single repeat."""
    if value is None:
        return NONE
    middle = written(value.median)
    return middle if value.count < 2 else f"{middle} ({written(value.least)} to {written(value.most)})"


def interval(ms: int) -> str:
    """Interval between checkpoints."""
    return "none" if not ms else f"{ms} ms" if ms % 1000 else f"{ms // 1000} s"


def query(job: str) -> str:
    """The name of a NEXMark job's query."""
    return job.rpartition("_")[2]


def query_number(job: str) -> int:
    """Number of a NEXMark job's query."""
    return int(query(job).removeprefix("q"))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; columns of numbers are aligned to the right."""
    rule = ["---:" if rows and all(_numeric(row[column]) for row in rows) else "---" for column in range(len(head))]
    lines = [head, rule, *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _numeric(cell: str) -> bool:
    bare = cell.strip("*")
    return bare[:1].isdigit() or bare[:1] == "-" or bare in ("none", "failed")
