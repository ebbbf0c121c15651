"""The demo's job and its oracle agree on every flight, and the oracle finds every planted error."""

import itertools
import shutil
import time
from functools import cache
from itertools import pairwise

import pandas as pd
import pytest
from spark_ckpt_demo import flights, oracle, story
from spark_ckpt_demo.cli.telling import Silence
from spark_ckpt_demo.driver import running_figures
from spark_ckpt_demo.options import DemoOptions
from spark_ckpt_demo.places import FilesAndDelta, figures_of, records
from spark_ckpt_demo.process import DriverProcess
from spark_ckpt_demo.story import DemoReport

from spark_ckpt.errors import RunFailed, SourceInvalid

COLUMNS = [*oracle.IDENTITY, "tailnum", *oracle.FIGURES]


every_flight = cache(flights.load)


class State:
    """The part of a GroupState that the function uses."""

    def __init__(self):
        self.getOption = None

    def update(self, value):
        self.getOption = value


@pytest.fixture(scope="module")
def expected():
    return oracle.expected()


def computed(every):
    """Run the job's function over the flights of each `every`-th aircraft, in three calls each, as in three batches."""
    rows = []
    for tailnum, group in itertools.islice(every_flight().groupby("tailnum"), 0, None, every):
        state = State()
        cuts = [0, len(group) // 3, len(group) // 2, len(group)]
        for start, end in pairwise(cuts):
            rows += list(running_figures((tailnum,), [group.iloc[start:end]], state))
    return pd.DataFrame(rows, columns=COLUMNS)


# One aircraft is computed at a time; the demo's own test compares all flights of a job on Spark.
@pytest.mark.parametrize(("every", "flights_of_them"), [(20, None), pytest.param(1, 336_776, marks=pytest.mark.long)])
def test_the_jobs_function_and_the_oracle_agree_on_every_flight(expected, every, flights_of_them):
    found = computed(every)
    wanted = expected[expected["tailnum"].isin(found["tailnum"])]
    comparison = oracle.compare(wanted, found)

    assert comparison.exact, comparison.examples
    assert comparison.found == len(wanted) == (flights_of_them or len(wanted)) > 10_000


def test_a_function_that_forgets_its_state_is_caught(expected):
    group = every_flight().query("tailnum == 'N725MQ'")
    rows = [row for part in (group[:200], group[200:]) for row in running_figures(("N725MQ",), [part], State())]
    wanted = expected[expected["tailnum"] == "N725MQ"]

    assert oracle.compare(wanted, pd.DataFrame(rows, columns=COLUMNS)).different == len(group) - 200


def test_flights_out_of_order_are_caught(expected):
    group = every_flight().query("tailnum == 'N725MQ'")
    rows = list(running_figures(("N725MQ",), [group[::-1]], State()))

    assert oracle.compare(expected[expected["tailnum"] == "N725MQ"], pd.DataFrame(rows, columns=COLUMNS)).different > 0


@pytest.mark.parametrize(
    ("what", "spoil"),
    [
        ("missing", lambda rows: rows.drop(index=777)),
        ("duplicated", lambda rows: pd.concat([rows, rows.iloc[[777]]])),
        ("unexpected", lambda rows: pd.concat([rows, rows.iloc[[777]].assign(carrier="??")])),
        ("different", lambda rows: rows.assign(mean_delay=rows["mean_delay"].where(rows.index != 777, 1e-9))),
        ("different", lambda rows: rows.assign(mean_delay=rows["mean_delay"].where(rows.index != 777))),
    ],
)
def test_one_wrong_row_of_all_is_found(expected, what, spoil):
    few = expected.head(5000)
    comparison = oracle.compare(few, spoil(few[COLUMNS]))

    assert (getattr(comparison, what), comparison.exact) == (1, False)
    assert comparison.examples[0].startswith(what)


def test_partial_output_is_a_prefix_of_every_aircrafts_flights(expected):
    some = expected.head(10_000)

    assert story.some_output(expected, some[COLUMNS]).exact
    assert story.some_output(expected, some[COLUMNS].head(0)).exact
    holed = story.some_output(expected, some.drop(index=some.index[some["tailnum"] == "N725MQ"][0])[COLUMNS])
    assert (holed.missing, holed.unexpected) == (1, 1)


def state_of(expected: pd.DataFrame, count: int) -> pd.DataFrame:
    return expected.head(count).groupby("tailnum").last().reset_index()


def test_the_state_after_a_prefix_is_right(expected):
    assert story.state(expected, state_of(expected, 10_000), 10_000).exact


def test_a_state_that_lacks_a_flight_is_caught(expected):
    state = state_of(expected, 10_000)
    state.loc[state["tailnum"] == "N725MQ", "flights"] -= 1

    assert not story.state(expected, state, 10_000).exact


def test_a_state_that_lacks_an_aircraft_is_caught(expected):
    assert not story.state(expected, state_of(expected, 10_000).drop(index=5), 10_000).exact


def test_output_after_a_restore_has_the_flights_after_the_state(expected):
    before, rest = state_of(expected, 10_000), expected.iloc[10_000:]

    assert story.output_after(expected, before, rest).exact
    assert story.output_after(expected, before, expected.iloc[10_001:]).missing == 1
    assert story.output_after(expected, before, expected.iloc[9_999:]).unexpected == 1


def test_flights_survive_a_round_trip_through_json():
    few = every_flight().head(1000)
    values = [value for _, value in records(few)]

    assert few["dep_delay"].isna().any()
    assert b"NaN" not in b"".join(values)
    assert list(figures_of(values)["departure"]) == list(few["departure"])


def test_a_demo_that_found_something_wrong_exits_non_zero(command, monkeypatch, expected):
    wrong = oracle.compare(expected.head(10), expected.head(9))

    monkeypatch.setattr("spark_ckpt_demo.story.play", lambda options, display: DemoReport(checks={"output": wrong}))
    answer = command("demo", "--json")

    assert (answer.code, answer.json["exact"], answer.json["checks"]["output"]["missing"]) == (6, False, 1)


def test_a_demo_without_checks_proves_nothing():
    assert not DemoReport().exact


def test_a_failed_driver_is_reported_with_the_end_of_its_log(tmp_path):
    with DriverProcess(["--no-such-option"], tmp_path / "driver.log") as driver:
        while driver.exit_code is None:
            time.sleep(0.05)

    with pytest.raises(RunFailed, match="exit code 2") as failed:
        driver.check_ended_well()
    assert "--store" in str(failed.value)


def test_a_driver_never_outlives_the_demo(tmp_path):
    with DriverProcess(["--help"], tmp_path / "driver.log") as driver:
        pass

    assert driver.exit_code is not None


def test_a_visible_driver_prints_to_the_demos_stdout(tmp_path, capfd):
    with DriverProcess(["--help"], tmp_path / "driver.log", progress=True) as driver:
        while driver.exit_code is None:
            time.sleep(0.05)

    assert "--progress" in capfd.readouterr().out
    assert (tmp_path / "driver.log").read_text() == ""


def test_json_output_has_no_pictures(command):
    answer = command("demo", "--json", "--progress")

    assert (answer.code, "--progress" in answer.err) == (2, True)


@pytest.mark.parametrize("arguments", [["--kafka", "nonsense"], ["--kafka", "127.0.0.1:9"]])
def test_a_demo_that_cannot_begin_leaves_no_files(command, monkeypatch, tmp_path, arguments):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("spark_ckpt_demo.topics.KafkaTopics.create", refuse)

    answer = command("demo", *arguments)

    assert answer.code in (2, 8)
    assert list(tmp_path.iterdir()) == []


def refuse(self, topic):
    raise SourceInvalid("nobody answers")


def test_a_demo_that_fails_with_a_driver_keeps_its_log(monkeypatch, tmp_path, expected):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(flights, "load", lambda: every_flight().head(1000))
    monkeypatch.setattr(oracle, "expected", lambda: expected)
    monkeypatch.setattr(FilesAndDelta, "arguments", lambda self, output: ["--no-such-option"])

    with pytest.raises(RunFailed) as failed:
        story.play(DemoOptions(), Silence())

    folder = failed.value.context["folder"]
    assert (folder / "driver-1.log").exists()
    shutil.rmtree(folder)
