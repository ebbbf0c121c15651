"""Tables of the page, one function per measure. A system whose runs all failed keeps its row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from benchmarks.report import wording
from benchmarks.report.contents import Contents, Entry
from benchmarks.report.lines import FAULTS, Line
from benchmarks.report.runs import Runs, grouped, in_one_session, ratio
from benchmarks.report.targets import Verdict, changed_share

MEBIBYTE = 1024 * 1024
ALL_FAILED = "**failed**"


def of_targets(rows: Iterable[Verdict]) -> str:
    """Reached and missed targets."""
    head = ("target", "asked", "measured, median (range)", "verdict")
    return wording.table(head, [(row.target, row.wanted, row.measured, _verdict(row)) for row in rows])


def _verdict(row: Verdict) -> str:
    return f"**{row.state}**" + (f": {row.remark}" if row.remark else "")


def of_throughput(contents: Contents, entries: Mapping[Entry, Runs]) -> str:
    """One job on one workload, the fastest first."""
    head = (
        "system", "guarantee", "checkpoint every", "spark_ckpt over this", "records/s", "repeats", "CPU s per million",
        "memory, MiB", "first output", "a checkpoint takes", "duplicates / missing / wrong",
    )  # fmt: skip
    return wording.table(head, [_throughput(contents, entries, *each) for each in fastest_first(entries)])


def fastest_first(entries: Mapping[Entry, Runs]) -> list[tuple[Entry, Runs]]:
    """Order by the median rate; failed systems come last."""
    return sorted(entries.items(), key=lambda each: -(each[1].median("records_per_s") or 0))


def _throughput(contents: Contents, entries: Mapping[Entry, Runs], entry: Entry, runs: Runs) -> tuple[str, ...]:
    rate = runs.spread("records_per_s")
    return (
        _name(contents, entry.system),
        contents.guarantee(entry.system),
        wording.interval(entry.interval_ms),
        compared(contents, entries, entry, runs),
        wording.spread(rate) if rate else ALL_FAILED,
        repeats(runs),
        wording.number(runs.median("cpu_s_per_million")),
        wording.number(runs.median("memory_mib")),
        wording.seconds(runs.median("first_output_s")),
        wording.seconds(runs.median("checkpoint_s")),
        faults(runs),
    )


def _name(contents: Contents, system: str) -> str:
    return contents.label(system) + ("" if contents.every_input(system) else " [1]")


def compared(contents: Contents, entries: Mapping[Entry, Runs], entry: Entry, runs: Runs) -> str:
    """Ratio of our best at the same interval to this one."""
    reference = contents.reference(entries, entry.interval_ms)
    if reference is None:
        return wording.NONE
    if reference[0] == entry.system:
        return "the reference"
    value = ratio(reference[1], runs, "records_per_s")
    if value is None:
        return wording.NONE
    return f"**{wording.times(value.median)}**" + ("" if in_one_session(reference[1], runs) else " [2]")


def repeats(runs: Runs) -> str:
    """Number of repeats, and of failed ones."""
    return f"{len(runs.good)}" + (f", **{len(runs.failed)} failed**" if runs.failed else "")


def faults(runs: Runs) -> str:
    """Faults that the oracle counted, over all repeats."""
    counts = [runs.total(fault) for fault in FAULTS]
    if all(count is None for count in counts):
        return wording.NONE
    text = " / ".join(wording.NONE if count is None else f"{count:,}" for count in counts)
    out_of_order = runs.total("reordered")
    return (text if runs.exact else f"**{text}**") + (f", **{out_of_order:,} out of order**" if out_of_order else "")


def of_queries(contents: Contents) -> str:
    """NEXMark's queries, each by every system."""
    head = (
        "query", "system", "checkpoint every", "spark_ckpt over this", "events/s", "repeats", "CPU s per million", "memory, MiB",
        "first output", "duplicates / missing / wrong",
    )  # fmt: skip
    rows = []
    for place, entries in sorted(contents.places("drain").items(), key=lambda each: wording.query_number(each[0].job)):
        for entry, runs in fastest_first(entries):
            system, _, *numbers = _throughput(contents, entries, entry, runs)
            rows.append((wording.query(place.job), system, *numbers))
    return wording.table(head, rows)


def of_latency(contents: Contents) -> str:
    """Time from the creation of an input to the receipt of its output."""
    head = ("job, workload", "system", "guarantee", "checkpoint every", "offered records/s", "p50", "p99", "largest",
            "repeats", "duplicates / missing / wrong")  # fmt: skip
    cases = grouped(
        contents.of("latency"),
        lambda line: (line.job, line.workload, line.system, line.interval_ms, contents.rate(line)),
    )
    return wording.table(head, [_latency(contents, runs) for runs in cases.values()])


def _latency(contents: Contents, runs: Runs) -> tuple[str, ...]:
    line, largest = runs.lines[0], runs.spread("max_ms")
    p50 = runs.spread("p50_ms")
    return (
        *_who(contents, line),
        wording.number(contents.rate(line)),
        wording.spread(p50, wording.seconds_of_ms) if p50 else ALL_FAILED,
        wording.spread(runs.spread("p99_ms"), wording.seconds_of_ms),
        wording.seconds_of_ms(largest.most if largest else None),
        repeats(runs),
        faults(runs),
    )


def _who(contents: Contents, line: Line) -> tuple[str, str, str, str]:
    place = ", ".join(part for part in (line.job, line.workload) if part)
    return place, _name(contents, line.system), contents.guarantee(line.system), wording.interval(line.interval_ms)


def of_recovery(contents: Contents) -> str:
    """Time from kill -9 to the first new committed record."""
    head = ("job, workload", "system", "guarantee", "checkpoint every", "kill -9 to first new record",
            "first start to first record", "repeats", "duplicates / missing / wrong")  # fmt: skip
    places = contents.places("recovery").values()
    return wording.table(head, [_recovery(contents, runs) for entries in places for runs in entries.values()])


def _recovery(contents: Contents, runs: Runs) -> tuple[str, ...]:
    taken = runs.spread("first_record_s")
    return (
        *_who(contents, runs.lines[0]),
        wording.spread(taken, wording.seconds) if taken else ALL_FAILED,
        wording.spread(runs.spread("start_s"), wording.seconds),
        repeats(runs),
        faults(runs),
    )


def of_intervals(contents: Contents) -> str:
    """Throughput with epochs against the same job without epochs."""
    head = ("job, workload", "system", "epochs every", "throughput lost", "records/s", "repeats")
    rows = []
    for entries in contents.places("interval").values():
        for _, runs in sorted(entries.items(), key=lambda each: (each[0].system, each[0].interval_ms)):
            rows.append(_interval(contents, runs))
    return wording.table(head, rows)


def _interval(contents: Contents, runs: Runs) -> tuple[str, ...]:
    place, system, _, every = _who(contents, runs.lines[0])
    rate = runs.spread("records_per_s")
    lost = runs.spread("lost")
    return (
        place,
        system,
        every,
        f"**{wording.spread(lost, wording.percent)}**" if lost else wording.NONE,
        wording.spread(rate) if rate else ALL_FAILED,
        repeats(runs),
    )


def of_state_size(contents: Contents) -> str:
    """Cost of an epoch as the number of keys grows."""
    head = ("system", "keys", "changed in the epoch", "epoch", "bytes written, MiB", "batch", "repeats")
    cases = grouped(
        contents.of("epoch"), lambda line: (line.system, changed_share(line) or 0.0, line.number("keys") or 0.0)
    )
    return wording.table(head, [_state_size(contents, *case, runs) for case, runs in sorted(cases.items(), key=_first)])


def _first(case: tuple[tuple[str, float, float], Runs]) -> tuple[str, float, float]:
    return case[0]


def _state_size(contents: Contents, system: str, share: float, keys: float, runs: Runs) -> tuple[str, ...]:
    taken, written = runs.spread("epoch_ms"), runs.median("bytes")
    return (
        contents.label(system) or wording.NONE,
        f"{keys:,.0f}",
        wording.share(share),
        wording.spread(taken, wording.milliseconds) if taken else ALL_FAILED,
        wording.NONE if written is None else wording.number(written / MEBIBYTE),
        wording.milliseconds(runs.median("batch_ms")),
        repeats(runs),
    )


def of_failures(contents: Contents) -> str:
    """All runs without numbers."""
    head = ("measure", "job, workload", "system", "checkpoint every", "repeat", "why")
    return wording.table(head, [_failure(contents, line) for line in contents.failed])


def _failure(contents: Contents, line: Line) -> tuple[str, ...]:
    place, system, _, every = _who(contents, line)
    return (
        line.measure,
        place or wording.NONE,
        system or wording.NONE,
        every,
        str(line.repeat),
        " ".join((line.failed or "").split()),
    )
