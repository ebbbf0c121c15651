"""The report of scripted lines has medians, spreads, ratios and verdicts, and loses no line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import benchmarks.systems
from benchmarks.report import write
from benchmarks.report.charts import Bars
from benchmarks.report.contents import Contents
from benchmarks.report.drawing import apart, draw
from benchmarks.report.lines import Line, Recorded, read
from benchmarks.report.page import markdown
from benchmarks.report.runs import Runs, Spread, ratio
from benchmarks.report.targets import verdicts
from benchmarks.systems import Environment, System

MACHINE = Line(
    measure="machine",
    values={"cores": 2, "memory_gib": 7.7, "system": "Linux", "versions": {"Kafka": "4.1.1"}, "load": [0.5, 1]},
)
HERE = Environment("here")
SYSTEMS = {
    name: System(name, label, name, guarantee, HERE, "module", every_input=every_input)
    for name, label, guarantee, every_input in (
        ("spark_ckpt-builtin", "Built-in", "exactly-once", True),
        ("spark_ckpt-vectorised", "Vectorised", "exactly-once", True),
        ("flink_sql", "Flink SQL", "exactly-once", True),
        ("quix", "Quix", "exactly-once", True),
        ("pyspark-native", "Native", "at-least-once", False),
    )
}
EXACT = {"duplicates": 0, "missing": 0, "wrong": 0}


def lines(measure, system, *values, job="running_sum", workload="uniform-10k", interval_ms=5000):
    """One line per repeat."""
    return [
        Recorded(
            measure=measure,
            job=job,
            workload=workload,
            system=system,
            interval_ms=interval_ms,
            repeat=repeat,
            values=each,
        )
        for repeat, each in enumerate(values)
    ]


def rates(system, *per_s, faults=EXACT, **place):
    return lines("throughput", system, *({"records_per_s": rate, **faults} for rate in per_s), **place)


def verdict_of(some_lines, words):
    found = [row for row in verdicts(contents(some_lines)) if words in row.target]
    assert len(found) == 1, [row.target for row in found]
    return found[0]


def contents(some_lines):
    return Contents.over([Line(**line.model_dump(exclude={"session"})) for line in some_lines], SYSTEMS)


def page(some_lines):
    return markdown(contents(some_lines))[0]


def row(text, *words):
    """The cells of the one table row with all of the words."""
    found = [line for line in text.splitlines() if line.startswith("| ") and all(word in line for word in words)]
    assert len(found) == 1, found
    return [cell.strip() for cell in found[0].strip("| ").split(" | ")]


# -- NEXMark -----------------------------------------------------------------------------------------------------------


def drained(query, system, rate, faults=EXACT):
    values = {"events": 1000, "drained_s": 10, "records_per_s": rate, **faults}
    return lines("drain", system, values, job=f"nexmark_q{query}", workload="nexmark")


@pytest.mark.parametrize(("ours", "count", "state"), [(100, 13, "reached"), (99, 8, "missed")])
def test_queries_at_the_peers_rate_are_counted(ours, count, state):
    slower, others = (3, 4, 5, 12, 20), (0, 1, 2, 7, 8, 11, 18, 19)
    theirs = [line for query in (*slower, *others) for line in drained(query, "flink_sql", 100)]
    first = [line for query in slower for line in drained(query, "spark_ckpt-builtin", ours)]
    rest = [line for query in others for line in drained(query, "spark_ckpt-builtin", 100)]
    found = verdict_of(theirs + first + rest, "NEXMark")
    assert found.state == state
    assert found.measured.startswith(f"**{count}**: q0 1.00x, q1 1.00x")
    assert found.measured.index("q8") < found.measured.index("q12")


def test_a_fast_query_with_a_wrong_answer_does_not_count():
    exact = [line for query in (0, 1, 2, 3, 4) for line in drained(query, "spark_ckpt-builtin", 200)]
    wrong = drained(5, "spark_ckpt-builtin", 900, faults=EXACT | {"missing": 1})
    theirs = [line for query in (0, 1, 2, 3, 4, 5) for line in drained(query, "flink_sql", 100)]
    found = verdict_of(exact + wrong + theirs, "NEXMark")
    assert (found.state, found.remark) == ("not decided", "not exact: q5")
    assert "900" in row(page(exact + wrong + theirs), "| q5 |", "Built-in")[4]


# -- repeats -----------------------------------------------------------------------------------------------------------


def test_a_spread_is_median_least_and_most_of_what_is_known():
    assert Spread.of([30, 10, None, 20, 100]) == Spread(25, 10, 100, 4)
    assert Spread.of([None]) is None


def test_a_ratio_is_of_medians_and_its_range_of_the_ratios_within_repeats():
    ours, theirs = Runs(tuple(rates("a", 100, 300, 200))), Runs(tuple(rates("b", 100, 100, 50)))
    assert ratio(ours, theirs, "records_per_s") == Spread(2, 1, 4, 3)


def test_repeats_are_paired_by_number_when_one_failed():
    theirs = [*rates("b", 100), *lines("throughput", "b", {"failed": "no output"}), *rates("b", 1, 1, 50)[2:]]
    theirs[1] = theirs[1].model_copy(update={"repeat": 1})
    assert ratio(Runs(tuple(rates("a", 100, 300, 200))), Runs(tuple(theirs)), "records_per_s") == Spread(
        200 / 75, 1, 4, 2
    )


def test_repeats_of_different_sessions_are_no_pairs():
    some = contents([MACHINE, *rates("spark_ckpt-builtin", 100, 300), MACHINE, *rates("flink_sql", 50, 50)])
    ours, theirs = some.places("throughput")["running_sum", "uniform-10k"].values()
    assert ratio(ours, theirs, "records_per_s") == Spread(4, 4, 4, 1)
    assert verdict_of(some.lines, "Flink SQL").remark == "not measured in one session"
    assert row(page(some.lines).partition("## Throughput")[2], "| Flink SQL")[3] == "**4.00x** [2]"


# -- verdicts ----------------------------------------------------------------------------------------------------------


def test_the_better_variant_is_compared_and_reaches_its_target():
    found = verdict_of(
        rates("spark_ckpt-builtin", 90) + rates("spark_ckpt-vectorised", 120) + rates("flink_sql", 100),
        "against Flink SQL",
    )
    assert (found.state, found.wanted, found.measured) == ("reached", "> 1.0x", "**1.20x**, Vectorised")


@pytest.mark.parametrize(("job", "state"), [("running_sum", "missed"), ("pass_through", "reached")])
def test_a_target_of_more_than_is_not_met_by_equality(job, state):
    equal = rates("spark_ckpt-builtin", 100, job=job) + rates("flink_sql", 100, job=job)
    assert verdict_of(equal, "against Flink SQL").state == state


def test_a_missed_target_is_reported_as_missed():
    found = verdict_of(rates("spark_ckpt-builtin", 69) + rates("quix", 10), "against Quix")
    assert (found.state, found.measured) == ("missed", "**6.90x**, Built-in")


def test_a_target_reached_by_the_median_only_is_reported_so():
    found = verdict_of(rates("spark_ckpt-builtin", 90, 110, 120) + rates("flink_sql", 100, 100, 100), "Flink SQL")
    assert (found.state, found.remark) == ("reached", "not in every repeat")


@pytest.mark.parametrize("fault", EXACT)
def test_inexact_output_misses_every_target(fault):
    found = verdict_of(
        rates("spark_ckpt-builtin", 900, faults={**EXACT, fault: 1}) + rates("flink_sql", 100), "Flink SQL"
    )
    assert (found.state, found.remark) == ("missed", "the output was not exact")


def test_records_out_of_order_are_reported():
    some = rates("spark_ckpt-builtin", 110, faults={**EXACT, "reordered": 3}) + rates("flink_sql", 100)
    assert verdict_of(some, "Flink SQL").remark == "records out of order"
    assert row(page(some).partition("## Throughput")[2], "Built-in")[-1] == "0 / 0 / 0, **3 out of order**"


def test_an_exact_variant_is_preferred_to_a_faster_wrong_one():
    wrong = rates("spark_ckpt-builtin", 900, faults={**EXACT, "wrong": 1})
    found = verdict_of(wrong + rates("spark_ckpt-vectorised", 110) + rates("flink_sql", 100), "Flink SQL")
    assert (found.state, found.measured) == ("reached", "**1.10x**, Vectorised")


def test_without_numbers_of_ours_it_is_missed_and_without_theirs_not_decided():
    broken = {"failed": "no output"}
    ours = verdict_of(lines("throughput", "spark_ckpt-builtin", broken) + rates("flink_sql", 100), "Flink SQL")
    theirs = verdict_of(rates("spark_ckpt-builtin", 100) + lines("throughput", "flink_sql", broken), "Flink SQL")
    assert (ours.state, theirs.state, theirs.remark) == ("missed", "not decided", "Flink SQL failed")


def test_different_intervals_are_not_compared():
    assert verdicts(contents(rates("spark_ckpt-builtin", 100) + rates("flink_sql", 10, interval_ms=1000))) == []


def test_targets_without_lines_have_no_row():
    assert verdicts(contents([])) == []
    assert (
        verdicts(
            contents(
                rates("spark_ckpt-builtin", 100, workload="uniform-1m") + rates("flink_sql", 10, workload="uniform-1m")
            )
        )
        == []
    )


@pytest.mark.parametrize(
    ("interval_ms", "lost", "state"),
    [(5000, 0.03, "reached"), (5000, 0.04, "missed"), (1000, 0.15, "reached"), (1000, 0.16, "missed")],
)
def test_what_epochs_may_cost(interval_ms, lost, state):
    values = {"records_per_s": 100, "lost": lost}
    found = verdict_of(lines("interval", "spark_ckpt-builtin", values, interval_ms=interval_ms), "throughput lost")
    assert (found.state, found.measured) == (state, f"**{lost * 100:.1f} %**")


@pytest.mark.parametrize(("many_ms", "state"), [(200, "reached"), (201, "missed")])
def test_how_an_epoch_may_grow(many_ms, state):
    sizes = ((10_000, 100), (1_000_000, many_ms))
    values = [{"keys": keys, "changed": keys // 100, "epoch_ms": ms, "bytes": 1, "batch_ms": 1} for keys, ms in sizes]
    assert verdict_of(lines("epoch", "spark_ckpt-builtin", *values, workload=""), "epoch of 1M").state == state


@pytest.mark.parametrize(
    ("p50_ms", "p99_ms", "states"),
    [(1999, 3000, {"p99": "reached", "p50": "reached"}), (2000, 3001, {"p99": "missed", "p50": "missed"})],
)
def test_latency_at_a_short_interval(p50_ms, p99_ms, states):
    values = {"rate": 10_000, "p50_ms": p50_ms, "p99_ms": p99_ms, **EXACT}
    some = lines("latency", "spark_ckpt-builtin", values, interval_ms=1000)
    assert {name: verdict_of(some, f"{name} latency").state for name in states} == states


@pytest.mark.parametrize(
    ("rate", "p50_ms", "p99_ms", "states"),
    [
        (1000, 450, 9999, {"p50": "reached"}), (1000, 451, 1, {"p50": "missed"}),
        (10_000, 600, 1101, {"p50": "reached", "p99": "missed"}), (10_000, 601, 1100, {"p50": "missed", "p99": "reached"}),
        (100_000, 9999, 1500, {"p99": "reached"}), (100_000, 1, 1501, {"p99": "missed"}),
    ],
)  # fmt: skip
def test_latency_with_an_epoch_per_batch(rate, p50_ms, p99_ms, states):
    values = {"rate": rate, "p50_ms": p50_ms, "p99_ms": p99_ms, **EXACT}
    some = lines("latency", "spark_ckpt-every-batch", values, interval_ms=1000)
    assert {row.target.split(": ")[1].split()[0]: row.state for row in verdicts(contents(some))} == states


def test_latency_at_another_rate_decides_nothing():
    assert (
        verdicts(contents(lines("latency", "spark_ckpt-builtin", {"rate": 2000, "p50_ms": 1, "p99_ms": 1, **EXACT})))
        == []
    )


def test_a_failed_run_has_the_rate_of_the_others():
    broken = lines("latency", "spark_ckpt-builtin", {"failed": "it broke"}, interval_ms=1000)
    other = {"p50_ms": 1, "p99_ms": 1, **EXACT}
    slow, fast = (lines("latency", "flink_sql", {"rate": rate, **other}, interval_ms=1000) for rate in (2000, 10_000))
    assert verdicts(contents(broken + slow)) == []
    assert {row.state for row in verdicts(contents(broken + fast))} == {"missed"}
    assert {row.state for row in verdicts(contents(broken))} == {"missed"}


def test_recovery_with_many_keys_is_what_it_takes_beyond_sparks_own():
    place = {"workload": "uniform-1m"}
    ours = lines(
        "recovery", "spark_ckpt-builtin", {"first_record_s": 14, **EXACT}, {"first_record_s": 18, **EXACT}, **place
    )
    sparks = lines("recovery", "pyspark-native", {"first_record_s": 10, **EXACT}, **place)
    found = verdict_of(ours + sparks, "kill -9")
    assert (found.state, found.wanted) == ("missed", "<= 5.00 s")
    assert found.measured == "**6.00 s (4.00 s to 8.00 s)**; Native: 10.0 s"
    assert not verdicts(contents(ours)), "without Spark's own there is nothing to compare with"


@pytest.mark.parametrize(("job_s", "state"), [(6.9, "reached"), (7.0, "missed")])
def test_a_first_batch_is_measured_beyond_an_empty_querys(job_s, state):
    rounds = ({"empty_s": 4.0, "job_s": job_s}, {"empty_s": 5.0, "job_s": job_s + 1})
    assert verdict_of(lines("start", "spark_ckpt-builtin", *rounds), "first batch").state == state


def per_key(**changed):
    values = {"plain_ms": 1000, "unchanged_ms": 250, "tuples_ms": 100, "vectorised_ms": 50, "built_in_ms": 50}
    return lines("per_key", "spark_ckpt-builtin", values | changed, workload="100k rows, 10k keys")


def test_the_per_key_function_is_compared_with_pysparks_and_with_quix():
    some = contents([*per_key(), *rates("quix", 900_000)])
    assert [(row.state, row.measured) for row in verdicts(some) if "per-key" in row.target] == [
        ("reached", "**4.00x**"),
        ("reached", "**10.0x**"),
        ("reached", "**1.11x**"),
    ]
    slow = contents([*per_key(unchanged_ms=251, tuples_ms=101), *rates("quix", 1_000_000)])
    assert [row.state for row in verdicts(slow) if "per-key" in row.target] == ["missed", "missed", "missed"]


def test_recovery_is_compared_with_flinks():
    ours = lines("recovery", "spark_ckpt-builtin", {"first_record_s": 8, **EXACT}, {"first_record_s": 9, **EXACT})
    found = verdict_of(ours + lines("recovery", "flink_sql", {"first_record_s": 12, **EXACT}), "kill -9")
    assert (found.state, found.measured) == ("reached", "**8.50 s (8.00 s to 9.00 s)**; Flink SQL: 12.0 s")
    assert (
        verdict_of(lines("recovery", "spark_ckpt-builtin", {"first_record_s": 10.1, **EXACT}), "kill -9").state
        == "missed"
    )


# -- the page ----------------------------------------------------------------------------------------------------------


def test_a_row_has_ratio_spread_repeats_and_what_the_oracle_found():
    faulty = rates("pyspark-native", 40, 60, 50, faults={"duplicates": 2, "missing": 0, "wrong": 0})
    text = page(rates("spark_ckpt-builtin", 100, 100, 100) + faulty)
    cells = row(text.partition("## Throughput")[2], "Native")
    assert cells[:6] == ["Native [1]", "at-least-once", "5 s", "**2.00x**", "50.0 (40.0 to 60.0)", "3"]
    assert cells[-1] == "**6 / 0 / 0**"
    assert "[1] Does not answer every input" in text


def test_the_fastest_is_first_even_when_it_is_a_peer():
    text = page(rates("spark_ckpt-builtin", 100) + rates("flink_sql", 200) + rates("quix", 10)).partition(
        "## Throughput"
    )[2]
    assert row(text, "Flink SQL")[3] == "**0.50x**"
    assert text.index("Flink SQL") < text.index("Built-in") < text.index("Quix")


def test_failed_runs_stay_on_the_page():
    some = rates("spark_ckpt-builtin", 100) + lines(
        "throughput", "quix", {"failed": "no output in\n120 s"}, {"failed": "x | y"}
    )
    text = page(some)
    assert row(text, "| Quix | exactly-once")[3:6] == ["-", "**failed**", "0, **2 failed**"]
    assert row(text, "no output")[-1] == "no output in 120 s"
    assert "x \\| y" in text
    rate_plot = next(chart for chart in markdown(contents(some))[1] if chart.file.startswith("throughput"))
    assert [bar.text for bar in rate_plot.bars if "Quix" in bar.label] == ["failed"]


@pytest.mark.parametrize("measure", ["latency", "recovery", "interval", "epoch", "table"])
def test_failed_runs_of_every_measure_are_shown(measure):
    text = page(lines(measure, "quix", {"failed": "it broke"}))
    assert row(text, "it broke")[0] == measure
    assert "**failed**" in text


def test_unknown_systems_and_systems_without_lines_are_named():
    text = page(rates("spark_ckpt-builtin", 100) + rates("newcomer", 50))
    assert row(text, "newcomer")[:2] == ["newcomer", "-"]
    assert "No run here of: Vectorised, Flink SQL, Quix, Native." in text


def test_machine_and_inside_tables_pass_through():
    inside = Line(measure="table", system="restore", values={"markdown": "| a | b |\n|---|---|\n| 1 | 2 |\n"})
    text = page([MACHINE, inside])
    assert "Measured on 2 cores; 7.7 GiB; Linux; Kafka 4.1.1; load before 0.5." in text
    assert "| a | b |\n|---|---|\n| 1 | 2 |" in text


def test_sessions_on_one_machine_are_one_sentence():
    later = {**MACHINE.values, "versions": {"Kafka": "4.1.1", "pandas": "2.3.3"}, "load": [2, 1]}
    text = page([MACHINE, *(Line(measure="machine", values=later | {"date": f"2026-01-0{day}"}) for day in (2, 1))])
    assert (
        "Measured 2026-01-01 to 2026-01-02 on 2 cores; 7.7 GiB; Linux; Kafka 4.1.1, pandas 2.3.3; load before 0.5 to 2."
        in text
    )


@pytest.mark.parametrize(
    "line",
    [
        '{"measure": "througput", "values": {"failed": "x"}}',
        '{"measure": "interval", "values": {}}',
        '{"measure": "interval", "values": {"records_per_s": NaN}}',
        '{"measure": "interval", "values": {"records_per_s": "many"}}',
        '{"measure": "interval", "value": {"records_per_s": 1}}',
        '{"measure": "interval", "values": {"records_per_s": 1}',
    ],
    ids=["measure", "missing", "nan", "text", "field", "cut off"],
)
def test_a_line_that_is_not_understood_is_an_error_with_its_number(tmp_path, line):
    path = tmp_path / "results.jsonl"
    path.write_text(f'{{"measure": "throughput", "values": {{"failed": ""}}}}\n\n{line}\n')
    with pytest.raises(ValueError, match="line 3"):
        read(path)


# -- where a record's time goes ----------------------------------------------------------------------------------------


def parts(system, *repeats, interval_ms=1000, **means):
    """A line per repeat: the mean of each part in ms. `off`: excess of the reported whole over the parts."""
    values = []
    for each in repeats or (means,):
        known = {name: value for name, value in each.items() if name != "off"}
        named = {f"{name}_{kind}_ms": value for name, value in known.items() for kind in ("mean", "p50", "p99")}
        whole = sum(known.values()) + each.get("off", 0)
        values.append({"rate": 10_000, "inputs": 3000, "unanswered": 0, "mean_ms": whole, **named, **EXACT})
    return lines("parts", system, *values, interval_ms=interval_ms)


def test_parts_are_in_the_order_of_a_records_path_with_plain_spark_first():
    text = page(everything())
    assert row(text, "waiting for a batch") == ["waiting for a batch", "150 (150, 150)", "300 (300, 300)"]
    assert row(text, "unexplained") == ["unexplained", "10 (10, 10)", "20 (20, 20)"]
    assert row(text, "the whole") == ["**the whole**", "**360**", "**575**"]
    order = [
        text.index(f"| {part} |") for part in ("waiting for a batch", "operator", "publish: commit", "unexplained")
    ]
    assert order == sorted(order)


def test_parts_that_do_not_add_up_to_the_whole_are_no_result_line():
    with pytest.raises(ValueError, match=r"miss the whole by 30\.0 ms"):
        parts("spark_ckpt-builtin", wait=300, unexplained=20, off=30)


def test_the_median_repeat_is_shown_completely():
    some = parts("spark_ckpt-builtin", *({"wait": wait, "unexplained": 900 - wait / 2} for wait in (100, 300, 200)))
    text = page(some)
    assert row(text, "waiting for a batch")[1] == "200 (200, 200)"
    assert row(text, "unexplained")[1] == "800 (800, 800)"


def everything() -> list[Line]:
    """Lines of every measure."""
    some = (
        rates("spark_ckpt-builtin", 100, 120)
        + rates("flink_sql", 90, 95)
        + lines("throughput", "quix", {"failed": "x"})
    )
    some += lines(
        "latency", "spark_ckpt-builtin", {"rate": 10_000, "p50_ms": 900, "p99_ms": 2000, "max_ms": 2500, **EXACT}
    )
    some += parts("pyspark-native", wait=150, action=200, unexplained=10)
    some += parts("spark_ckpt-builtin", wait=300, operator=200, publish_commit=50, visible=5, unexplained=20)
    some += lines("recovery", "spark_ckpt-builtin", {"first_record_s": 8, "start_s": 9, **EXACT})
    for interval_ms, lost in ((60_000, -0.01), (1000, 0.1)):
        values = {"records_per_s": 100 * (1 - lost), "lost": lost}
        some += lines("interval", "spark_ckpt-builtin", values, interval_ms=interval_ms)
    sizes = [{"keys": keys, "changed": keys // 100, "epoch_ms": 50, "bytes": keys} for keys in (10_000, 1_000_000)]
    return some + lines("epoch", "spark_ckpt-builtin", *sizes)


def test_every_plot_is_named_on_the_page():
    text, shown = markdown(contents(everything()))
    assert [chart.file.split("-")[0] for chart in shown] == [
        "throughput",
        "latency",
        "parts",
        "recovery",
        "interval.svg",
        "state",
    ]
    assert all(f"(plots/{chart.file})" in text for chart in shown)
    assert all(bar.text for chart in shown if isinstance(chart, Bars) for bar in chart.bars)


def written(folder: Path, monkeypatch) -> dict[str, bytes]:
    monkeypatch.setattr(benchmarks.systems, "systems", lambda: SYSTEMS)
    folder.mkdir()
    results = folder / "results.jsonl"
    results.write_text("\n".join(json.dumps(line.model_dump(exclude={"session"})) for line in everything()))
    (folder / "plots").mkdir()
    (folder / "plots" / "of-an-older-run.svg").write_text("")
    write(results, folder)
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_lines_make_the_same_files(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    first, second = (written(tmp_path / name, monkeypatch) for name in ("first", "second"))
    assert first == second
    assert "of-an-older-run.svg" not in first
    plots = [content for name, content in first.items() if name.endswith(".svg")]
    assert len(plots) == 6
    assert all(b"prefers-color-scheme: dark" in content and b"<dc:date>" not in content for content in plots)


def test_zero_is_a_bar_too(tmp_path):
    pytest.importorskip("matplotlib")
    _, (chart,) = markdown(contents(lines("recovery", "quix", {"first_record_s": 0, **EXACT})))
    assert draw(chart, tmp_path).stat().st_size > 0


def test_names_at_line_ends_are_kept_apart():
    heights = [100.0, 50.0, 52.0]
    moved = [height + shift for height, shift in zip(heights, apart(heights, 12), strict=True)]
    assert moved[2] - moved[1] >= 12
    assert moved[0] > moved[2]
