"""The project's targets, and the verdict of the result lines on each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.report import wording
from benchmarks.report.contents import BUILT_IN, VECTORISED, Contents, Entry, Place, is_ours
from benchmarks.report.lines import Line
from benchmarks.report.runs import Runs, Spread, best, grouped, in_one_session, ratio

ROUNDING = 1e-9  # of quotients: 1 - 0.97 is above 0.03
State = Literal["reached", "missed", "not decided"]


@dataclass(frozen=True)
class Verdict:
    """One row: the target and the result. `remark`: a fact that the verdict alone would hide."""

    target: str
    wanted: str
    measured: str
    state: State
    remark: str = ""


@dataclass(frozen=True)
class Limit:
    """A bound on a measured value."""

    text: str
    holds: Callable[[float], bool]


def _at_most(most: float, text: str) -> Limit:
    return Limit(f"<= {text}", lambda value: value <= most * (1 + ROUNDING))


@dataclass(frozen=True)
class Rate:
    """Ratio to a peer's throughput that is the target; `workload` None: in every measured one."""

    job: str
    workload: str | None
    peer: str
    least: float
    more: bool = False

    @property
    def limit(self) -> Limit:
        """The bound on the ratio."""
        if self.more:
            return Limit(f"> {self.least:.1f}x", lambda value: value > self.least)
        return Limit(f">= {self.least:.1f}x", lambda value: value >= self.least * (1 - ROUNDING))


NATIVE, QUIX = "pyspark-native", "quix"
RATES = (
    Rate("running_sum", "uniform-10k", "flink_sql", 1, more=True),
    Rate("running_sum", "uniform-10k-busy", "flink_sql", 1.4),
    Rate("running_sum", "uniform-10k", QUIX, 7),
    Rate("running_sum", "uniform-10k", "pyflink", 15),
    Rate("running_sum", "uniform-10k", "pyspark-pandas", 15),
    Rate("running_sum", "uniform-10k", "pyspark-pandas-5s", 15),
    Rate("running_sum", "uniform-10k", NATIVE, 2),
    Rate("pass_through", None, "flink_sql", 1),
)
QUERIES, QUERIES_LEAST, QUERIES_PEER = 13, 9, "flink_sql"
INTERVAL_COSTS = {5000: 0.03, 1000: 0.15}
FEW_KEYS, MANY_KEYS, CHANGED_SHARE, GROWTH = 10_000, 1_000_000, 0.01, 2.0
LATENCY_RATE, LATENCY_SLACK_MS, SHORT_INTERVAL_MS, SHORT_MEDIAN_MS = 10_000, 2000, 1000, 2000
AN_EPOCH_PER_BATCH = ("spark_ckpt-every-batch", "spark_ckpt-ahead")
PER_BATCH_MS = {(1000, "p50"): 450, (10_000, "p50"): 600, (10_000, "p99"): 1100, (100_000, "p99"): 1500}
"""Upper limits by records per second and quantile."""
RECOVERY_S, RECOVERY_BEYOND_SPARK_S, START_BEYOND_SPARK_S = 10.0, 5.0, 3.0
TAKEOVER_S = {
    ("spark_ckpt-standby", "uniform-10k"): 2.5,
    ("spark_ckpt-standby", "uniform-1m"): 4.0,
    ("spark_ckpt-standby-short", "uniform-10k"): 2.5,
    ("spark_ckpt-standby-short", "uniform-1m"): 4.0,
    ("spark_ckpt-standby-far", "uniform-10k"): 8.0,
}
"""Upper limits with a standby, by system and workload. On another host the lease of 6 s must expire first."""
PER_KEY = {"unchanged_ms": 4.0, "tuples_ms": 10.0}
PER_KEY_ROWS = 100_000


def verdicts(contents: Contents) -> list[Verdict]:
    """A row for every target that has lines."""
    found = (_rates, _queries, _per_key, _interval_costs, _state_growth, _latencies, _recoveries, _starts)
    return [verdict for part in found for verdict in part(contents)]


def judged(target: str, limit: Limit, value: Spread | None, measured: str, *judged_runs: Runs) -> Verdict:
    """Verdict by the median. Output that is not exact misses every target; so does a system without numbers."""
    if value is None:
        return Verdict(target, limit.text, "no numbers, all runs failed", "missed")
    if not all(runs.exact for runs in judged_runs):
        return Verdict(target, limit.text, measured, "missed", "the output was not exact")
    remarks = []
    if limit.holds(value.median) and not (limit.holds(value.least) and limit.holds(value.most)):
        remarks.append("not in every repeat")
    if failures := sum(len(runs.failed) for runs in judged_runs):
        remarks.append(f"{failures} failed {'run' if failures == 1 else 'runs'} left out")
    if any(runs.total("reordered") for runs in judged_runs):
        remarks.append("records out of order")
    return Verdict(
        target, limit.text, measured, "reached" if limit.holds(value.median) else "missed", ", ".join(remarks)
    )


# -- throughput against a peer -----------------------------------------------------------------------------------------


def _rates(contents: Contents) -> Iterator[Verdict]:
    places = contents.places("throughput")
    for rate in RATES:
        for place, entries in places.items():
            if place.job == rate.job and rate.workload in (None, place.workload):
                yield from _against_peer(contents, rate, place, entries)


def _against_peer(contents: Contents, rate: Rate, place: Place, entries: dict[Entry, Runs]) -> Iterator[Verdict]:
    for entry, theirs in entries.items():
        ours = [
            (name, entries[key])
            for name in (BUILT_IN, VECTORISED)
            if (key := Entry(name, entry.interval_ms)) in entries
        ]
        if entry.system == rate.peer and ours:
            title = (
                f"{place}, every {wording.interval(entry.interval_ms)}: records/s against {contents.label(rate.peer)}"
            )
            yield _one_rate(contents, rate, title, ours, theirs)


def _one_rate(contents: Contents, rate: Rate, title: str, ours: list[tuple[str, Runs]], theirs: Runs) -> Verdict:
    chosen = best(ours, "records_per_s")
    if chosen is None:
        return judged(title, rate.limit, None, "")
    if theirs.spread("records_per_s") is None:
        return Verdict(title, rate.limit.text, wording.NONE, "not decided", f"{contents.label(rate.peer)} failed")
    name, runs = chosen
    value = ratio(runs, theirs, "records_per_s")
    verdict = judged(
        title, rate.limit, value, f"**{wording.spread(value, wording.times)}**, {contents.label(name)}", runs
    )
    if in_one_session(runs, theirs):
        return verdict
    return replace(verdict, remark=", ".join(filter(None, [verdict.remark, "not measured in one session"])))


# -- NEXMark -----------------------------------------------------------------------------------------------------------


def _queries(contents: Contents) -> Iterator[Verdict]:
    """Number of queries whose rate is at least the peer's. A query with output that is not exact has no rate."""
    ratios, inexact = {}, []
    for place, entries in contents.places("drain").items():
        for entry, theirs in entries.items():
            ours = contents.reference(entries, entry.interval_ms)
            if entry.system != QUERIES_PEER or ours is None:
                continue
            value = ratio(ours[1], theirs, "records_per_s")
            if not ours[1].exact:
                inexact.append(wording.query(place.job))
            elif value is not None:
                ratios[wording.query(place.job)] = value.median
    if not ratios and not inexact:
        return
    least = Limit(f">= {QUERIES_LEAST} of {QUERIES}", lambda count: count >= QUERIES_LEAST)
    reached = sum(value >= 1 - ROUNDING for value in ratios.values())
    by_query = ", ".join(f"{query} {wording.times(value)}" for query, value in sorted(ratios.items(), key=_by_number))
    measured = f"**{reached}**: {by_query}"
    state: State = (
        "reached" if least.holds(reached) else "missed" if len(ratios) + len(inexact) == QUERIES else "not decided"
    )
    remark = f"not exact: {', '.join(inexact)}" if inexact else ""
    title = f"NEXMark: queries at {contents.label(QUERIES_PEER)}'s rate or above"
    yield Verdict(title, least.text, measured, state, remark)


def _by_number(each: tuple[str, float]) -> int:
    return wording.query_number(each[0])


# -- the per-key function of a plain PySpark user ----------------------------------------------------------------------


def _per_key(contents: Contents) -> Iterator[Verdict]:
    for runs in grouped(contents.of("per_key"), lambda line: line.workload).values():
        for name, least in PER_KEY.items():
            times = Spread.of(line.values["plain_ms"] / line.values[name] for line in runs.good)
            title = f"per-key function, {name.removesuffix('_ms')}, {runs.lines[0].workload} a batch: against PySpark's"
            limit = Limit(f">= {least:.1f}x", lambda value, least=least: value >= least)  # type: ignore[misc]
            yield judged(title, limit, times, f"**{wording.spread(times, wording.times)}**", runs)
        yield from _per_key_against_quix(contents, runs)


def _per_key_against_quix(contents: Contents, runs: Runs) -> Iterator[Verdict]:
    """The ratio of rates: batches follow one another, so a batch's time gives a rate."""
    entries = contents.places("throughput").get(Place("running_sum", "uniform-10k"), {})
    rates = [theirs.median("records_per_s") for entry, theirs in entries.items() if entry.system == QUIX]
    if rates and (rate := rates[0]):
        times = Spread.of(PER_KEY_ROWS * 1000 / line.values["tuples_ms"] / rate for line in runs.good)
        title = f"per-key function, tuples: records/s against {contents.label(QUIX)}, running_sum"
        limit = Limit("> 1.0x", lambda value: value > 1)
        yield judged(title, limit, times, f"**{wording.spread(times, wording.times)}**", runs)


# -- cost of epochs ----------------------------------------------------------------------------------------------------


def _interval_costs(contents: Contents) -> Iterator[Verdict]:
    for place, entries in contents.places("interval").items():
        for entry, runs in entries.items():
            if entry.interval_ms not in INTERVAL_COSTS:
                continue
            most = INTERVAL_COSTS[entry.interval_ms]
            value = runs.spread("lost")
            title = (
                f"throughput lost to epochs every {wording.interval(entry.interval_ms)}{_of(contents, entry, place)}"
            )
            yield judged(
                title,
                _at_most(most, f"{most * 100:.0f} %"),
                value,
                f"**{wording.spread(value, wording.percent)}**",
                runs,
            )


def _of(contents: Contents, entry: Entry, place: Place) -> str:
    named = ", ".join(part for part in (contents.label(entry.system), str(place)) if part)
    return f" ({named})" if named else ""


# -- growth of an epoch with the state ---------------------------------------------------------------------------------


def changed_share(line: Line) -> float | None:
    """Share of the keys that changes in the epoch."""
    keys, changed = line.number("keys"), line.number("changed")
    return changed / keys if keys and changed is not None else None


def _state_growth(contents: Contents) -> Iterator[Verdict]:
    little = [
        line for line in contents.of("epoch") if abs((changed_share(line) or 0) - CHANGED_SHARE) < CHANGED_SHARE / 10
    ]
    for system, runs in grouped(little, lambda line: line.system).items():
        by_keys = grouped(runs.lines, lambda line: line.number("keys"))
        few, many = by_keys.get(FEW_KEYS), by_keys.get(MANY_KEYS)
        if few and many:
            value = ratio(many, few, "epoch_ms")
            title = f"epoch of 1M keys over one of 10k, 1 % changed{_of(contents, Entry(system, 0), Place('', ''))}"
            yield judged(
                title,
                _at_most(GROWTH, wording.times(GROWTH)),
                value,
                f"**{wording.spread(value, wording.times)}**",
                many,
                few,
            )


# -- latency and recovery ----------------------------------------------------------------------------------------------


def _latencies(contents: Contents) -> Iterator[Verdict]:
    ours = [line for line in contents.of("latency") if is_ours(line.system)]
    for (place, entry), runs in grouped(ours, lambda line: (Place(line.job, line.workload), _entry(line))).items():
        for (rate, quantile), most_ms in _latency_bounds_ms(entry).items():
            if at_rate := [line for line in runs.lines if _is_at(rate, contents, line)]:
                yield _latency(contents, place, entry, Runs(tuple(at_rate)), (rate, quantile), most_ms)


def _entry(line: Line) -> Entry:
    return Entry(line.system, line.interval_ms)


def _latency_bounds_ms(entry: Entry) -> Mapping[tuple[int, str], int]:
    if entry.system in AN_EPOCH_PER_BATCH:
        return PER_BATCH_MS
    median = {(LATENCY_RATE, "p50"): SHORT_MEDIAN_MS} if entry.interval_ms == SHORT_INTERVAL_MS else {}
    return {(LATENCY_RATE, "p99"): entry.interval_ms + LATENCY_SLACK_MS} | median


def _is_at(rate: int, contents: Contents, line: Line) -> bool:
    """A failed run counts if no rate is known: otherwise the target would not show that it has no numbers."""
    known = contents.rate(line)
    return not contents.rates if known is None else abs(known - rate) <= rate / 20


def _latency(contents: Contents, place: Place, entry: Entry, runs: Runs, at: tuple[int, str], most: int) -> Verdict:
    rate, quantile = at
    value = runs.spread(f"{quantile}_ms")
    title = (
        f"{place}, every {wording.interval(entry.interval_ms)}: {quantile} latency at {rate // 1000}k records/s, "
        f"{contents.label(entry.system)}"
    )
    bound = wording.seconds_of_ms(most)
    strict = quantile == "p50" and entry.system not in AN_EPOCH_PER_BATCH
    limit = Limit(f"< {bound}", lambda ms: ms < most) if strict else _at_most(most, bound)
    return judged(title, limit, value, f"**{wording.spread(value, wording.seconds_of_ms)}**", runs)


def _recoveries(contents: Contents) -> Iterator[Verdict]:
    for place, entries in contents.places("recovery").items():
        flink = {entry.interval_ms: runs for entry, runs in entries.items() if entry.system == "flink_sql"}
        for entry, runs in entries.items():
            most_s = TAKEOVER_S.get((entry.system, place.workload))
            if most_s is not None or (is_ours(entry.system) and place.workload.endswith("-10k")):
                yield _recovery(contents, place, entry, runs, flink.get(entry.interval_ms), most_s or RECOVERY_S)
            elif is_ours(entry.system) and (sparks := entries.get(Entry(NATIVE, entry.interval_ms))):
                yield _recovery_beyond_spark(contents, place, entry, runs, sparks)


def _recovery(contents: Contents, place: Place, entry: Entry, runs: Runs, flink: Runs | None, most_s: float) -> Verdict:
    value = runs.spread("first_record_s")
    flinks = flink.spread("first_record_s") if flink else None
    measured = f"**{wording.spread(value, wording.seconds)}**"
    if flink:
        measured += (
            f"; {contents.label('flink_sql')}: {wording.spread(flinks, wording.seconds) if flinks else 'failed'}"
        )
    title = f"{place}, every {wording.interval(entry.interval_ms)}: kill -9 to the first new record, {contents.label(entry.system)}"
    return judged(title, _at_most(most_s, wording.seconds(most_s)), value, measured, runs)


def _recovery_beyond_spark(contents: Contents, place: Place, entry: Entry, runs: Runs, sparks: Runs) -> Verdict:
    """Our time minus that of plain PySpark without Python and without exactly-once, which is Spark's own start."""
    base = sparks.spread("first_record_s")
    value = base and Spread.of(line.values["first_record_s"] - base.median for line in runs.good)
    measured = f"**{wording.spread(value, wording.seconds)}**; {contents.label(NATIVE)}: {wording.spread(base, wording.seconds)}"
    case = f"{place}, every {wording.interval(entry.interval_ms)}"
    title = f"{case}: kill -9 to the first new record beyond Spark's own, {contents.label(entry.system)}"
    return judged(
        title, _at_most(RECOVERY_BEYOND_SPARK_S, wording.seconds(RECOVERY_BEYOND_SPARK_S)), value, measured, runs
    )


def _starts(contents: Contents) -> Iterator[Verdict]:
    for runs in grouped(contents.of("start"), lambda line: line.workload).values():
        value = Spread.of(line.values["job_s"] - line.values["empty_s"] for line in runs.good)
        bound = wording.seconds(START_BEYOND_SPARK_S)
        limit = Limit(f"< {bound}", lambda beyond: beyond < START_BEYOND_SPARK_S)
        title = f"first batch of a start, {runs.lines[0].workload}, beyond an empty Spark query's"
        yield judged(title, limit, value, f"**{wording.spread(value, wording.seconds)}**", runs)
