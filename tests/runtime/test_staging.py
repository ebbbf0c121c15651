"""Staged files hold every row once, where its key and partition belong, and say so exactly."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from dataclasses import asdict

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_ckpt.connector import RefusedRow, StagePlan
from spark_ckpt.coordination.reports import Report, staged_file
from spark_ckpt.epochs.records import STAGED_FILE
from spark_ckpt.store.location import Location
from spark_ckpt.tasks.failures import OutputInvalid
from spark_ckpt.tasks.rows import REJECT
from spark_ckpt.tasks.stage_tasks import tapper
from spark_ckpt.tasks.staging import SinkStage, StageWriter, by_partition, lane_of, staging

KEYS = ["a", None, "b", "ä", "a", "", None, "c" * 50]


class Reported:
    """Replaces the accumulator."""

    def __init__(self):
        self.sent = []

    def send(self, step, scope, body):
        self.sent.append(Report(step, 0, 0, scope, json.loads(json.dumps(body))))


def stage(folder, sink="out", **plan):
    return SinkStage(sink, StagePlan(**plan), Location(str(folder)), 3)


def written(folder, *tables, **plan):
    with StageWriter(stage(folder, **plan), 7) as writer:
        for table in tables:
            writer.write(table)
        return writer.close()


def read(folder, file):
    return pq.ParquetFile(folder / file.path).read()


def files_in(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def rows_of(keys):
    return pa.table({"k": pa.array(keys, pa.string()), "v": pa.array(range(len(keys)), pa.int64())})


def test_one_file_per_task_keeps_the_order_of_rows(tmp_path):
    (file,) = written(tmp_path, rows_of(["b", "a"]), rows_of(["c"]))
    assert read(tmp_path, file).column("k").to_pylist() == ["b", "a", "c"]
    assert (file.rows, file.batch, file.task, file.part, file.lane) == (3, 7, 0, 0, 0)
    assert file.size_bytes == (tmp_path / file.path).stat().st_size


def test_nothing_is_staged_for_no_rows(tmp_path):
    assert written(tmp_path, rows_of([])) == []
    assert files_in(tmp_path) == []


def test_two_tasks_never_share_a_name(tmp_path):
    first, second = written(tmp_path, rows_of(["a"])), written(tmp_path, rows_of(["a"]))
    assert first[0].path != second[0].path


def test_a_keys_rows_are_in_one_lane_in_their_order(tmp_path):
    files = written(tmp_path, rows_of(KEYS), rows_of(KEYS), lanes=3, lane_by="k")
    lanes = {}
    for file in files:
        for key in read(tmp_path, file).column("k").to_pylist():
            lanes.setdefault(key, set()).add(file.lane)
    assert set(lanes) == set(KEYS)
    assert all(len(where) == 1 for where in lanes.values())
    assert sum(file.rows for file in files) == 2 * len(KEYS)
    assert len(files) == len({file.lane for file in files}), "one file per lane"
    assert sorted(file.part for file in files) == list(range(len(files)))


def test_null_keys_are_in_the_first_lane():
    lanes = lane_of(pa.chunked_array([pa.array([None, "a", None])]), 8)
    assert (lanes[0], lanes[2]) == (0, 0)


def test_a_keys_lane_is_the_same_in_every_process():
    kinds = [["a", "b", "ä" * 9], [b"\0\1", b"k"], [1, 2**60], [dt.date(2024, 1, 1)]]
    program = f"""
import datetime, pyarrow as pa
from spark_ckpt.tasks.staging import lane_of
print([lane_of(pa.chunked_array([pa.array(keys)]), 1000).tolist() for keys in {kinds!r}])
"""
    others = [
        subprocess.run([sys.executable, "-c", program], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
                       capture_output=True, text=True, check=True).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    here = [lane_of(pa.chunked_array([pa.array(keys)]), 1000).tolist() for keys in kinds]
    assert json.loads(others[0]) == json.loads(others[1]) == here


def test_keys_spread_over_the_lanes():
    lanes = lane_of(pa.chunked_array([pa.array([f"key {n}" for n in range(1000)])]), 4)
    assert min((lanes == lane).sum() for lane in range(4)) > 150


ODD = ["a/b", "a b", "ä", "100%", "x=y", "..", None, "", "?#"]


def test_partition_values_become_folders_and_leave_the_file(tmp_path):
    files = written(tmp_path, rows_of(ODD), partition_by=("k",))
    found = {file.partition_values["k"]: read(tmp_path, file) for file in files}
    assert {value: table.column("v").to_pylist() for value, table in found.items()} == {
        value: [number] for number, value in enumerate(ODD)
    }
    assert {tuple(table.column_names) for table in found.values()} == {("v",)}
    by_value = {file.partition_values["k"]: file.path.split("/")[0] for file in files}
    assert by_value["a/b"] == "k=a%2Fb"
    assert by_value[None] == "k=__HIVE_DEFAULT_PARTITION__"
    assert all(file.path.count("/") == 1 for file in files), "a value makes no folder of its own"


def test_staged_files_with_odd_partition_values_fit_the_log(tmp_path):
    for file in written(tmp_path, rows_of(ODD), partition_by=("k",)):
        assert asdict(STAGED_FILE.validate_json(json.dumps(asdict(file)))) == asdict(file)


@pytest.mark.parametrize("name", ["..", "/a", "a\\b", "a b%20", "=", "ü" * 200])
@pytest.mark.parametrize("value", ["x" * 300, "ü" * 100, "..", "\n"])
def test_a_folder_takes_any_column_name_and_any_value(tmp_path, name, value):
    rows = pa.table({name: [value, value + "2"], "v": [1, 2]})
    files = written(tmp_path, rows, partition_by=(name,))
    found = {file.partition_values[name]: read(tmp_path, file).column("v").to_pylist() for file in files}
    assert found == {value: [1], value + "2": [2]}
    assert len({file.path.rpartition("/")[0] for file in files}) == 2


def test_several_partition_columns_are_combined_as_they_occur(tmp_path):
    table = pa.table({
        "day": pa.array([dt.date(2024, 1, 2), None, dt.date(2024, 1, 2), None], pa.date32()),
        "ok": pa.array([True, False, True, None]),
        "v": pa.array([1, 2, 3, 4]),
    })  # fmt: skip
    files = written(tmp_path, table, partition_by=("day", "ok"))
    found = {(*file.partition_values.values(),): read(tmp_path, file).column("v").to_pylist() for file in files}
    assert found == {("2024-01-02", "true"): [1, 3], (None, "false"): [2], (None, None): [4]}


def test_more_combinations_than_an_integer_counts_stay_apart():
    """With 2^16 - 1 values and a null in each of five columns, the first one's weight is 2^64, which is 0 in 64 bits."""
    values = [str(number) for number in range((1 << 16) - 1)]
    columns = {f"p{number}": [*values, "7"] for number in range(5)} | {"p0": [*values, "5"]}
    parts = list(by_partition(pa.table(columns), list(columns)))
    assert len(parts) == len({found for found, _ in parts}) == len(values) + 1


def test_partitions_and_lanes_together_lose_no_row(tmp_path):
    table = pa.table({"p": ["x", "y"] * 50, "k": [f"{n % 7}" for n in range(100)], "v": range(100)})
    files = written(tmp_path, table, partition_by=("p",), lanes=3, lane_by="k")
    assert sorted(value for file in files for value in read(tmp_path, file).column("v").to_pylist()) == list(range(100))


def test_rows_are_cast_to_the_sinks_schema(tmp_path):
    schema = pa.schema([("v", pa.int32()), ("k", pa.large_string())])
    (file,) = written(tmp_path, rows_of(["a"]), schema=schema)
    assert read(tmp_path, file).schema.equals(schema)


def test_a_value_that_does_not_fit_fails_the_task_and_leaves_no_file(tmp_path):
    table = pa.table({"v": pa.array([2**40])})
    with pytest.raises(OutputInvalid, match=r"'v'.*int64.*int32") as refused:
        written(tmp_path, pa.table({"v": pa.array([1])}), table, schema=pa.schema([("v", pa.int32())]))
    assert files_in(tmp_path) == []
    assert refused.value.context == {"sink": "out", "column": "v"}
    assert not refused.value.retriable


def no_twos(table):
    values = table.column("v").to_pylist()
    return RefusedRow(values.index(2), "v", "two is company", "give three") if 2 in values else None


def test_a_row_that_the_sink_refuses_fails_the_task_and_leaves_no_file(tmp_path):
    with pytest.raises(OutputInvalid, match="'out' takes no row whose column 'v' is 2: two is company") as refused:
        written(tmp_path, rows_of(["a", "b"]), rows_of(["a", "b", "c"]), refuses=no_twos)
    assert files_in(tmp_path) == []
    assert refused.value.context == {"sink": "out", "column": "v"}
    assert (refused.value.hint, refused.value.retriable) == ("give three", False)


def test_rows_are_validated_after_the_cast(tmp_path):
    schema = pa.schema([("v", pa.int32())])
    with pytest.raises(OutputInvalid, match="two is company"):
        written(tmp_path, pa.table({"v": pa.array([2], pa.int64())}), schema=schema, refuses=no_twos)


def test_a_null_that_a_sink_cannot_take_names_column_and_sink(tmp_path):
    schema = pa.schema([pa.field("v", pa.int64(), nullable=False)])
    with pytest.raises(OutputInvalid, match=r"'v'.*without nulls"):
        written(tmp_path, pa.table({"v": pa.array([1, None])}), schema=schema)


def test_a_task_that_fails_leaves_no_file_of_any_sink(tmp_path):
    def rows():
        yield rows_of(["a", "b"])
        raise RuntimeError("the user's function")

    stages = [stage(tmp_path / "one", "one"), stage(tmp_path / "two", "two", partition_by=("k",))]
    reported = Reported()
    with pytest.raises(RuntimeError), staging(stages, 0, reported) as write:
        for table in rows():
            write(table)
    assert reported.sent == []
    assert files_in(tmp_path) == []


def test_every_sink_gets_every_row_and_every_file_is_reported(tmp_path):
    stages = [stage(tmp_path / "one", "one"), stage(tmp_path / "two", "two", lanes=2, lane_by="k")]
    reported = Reported()
    with staging(stages, 5, reported) as write:
        for _ in range(2):
            write(rows_of(KEYS))
    rows = {}
    for report in reported.sent:
        assert report.step == "tap"
        file = staged_file(report.body)
        assert read(tmp_path / report.scope, file).num_rows == file.rows
        rows[report.scope] = rows.get(report.scope, 0) + file.rows
    assert rows == {"one": 2 * len(KEYS), "two": 2 * len(KEYS)}
    assert len(files_in(tmp_path)) == len(reported.sent)


def test_statistics_are_those_of_the_written_file(tmp_path):
    rows = pa.table({"v": pa.array([5, None, 3], pa.int64()), "s": pa.array(["b", "a", None])})
    (file,) = written(tmp_path, rows, rows.slice(0, 1))
    assert json.loads(file.stats) == {
        "numRecords": 4, "nullCount": {"v": 1, "s": 1},
        "minValues": {"v": 3, "s": "a"}, "maxValues": {"v": 5, "s": "b"},
    }  # fmt: skip


def test_a_file_is_invisible_until_the_task_closes_it(tmp_path):
    with StageWriter(stage(tmp_path), 0) as writer:
        writer.write(rows_of(["a"]))
        assert [path for path in files_in(tmp_path) if path.suffix == ".parquet"] == []
        writer.close()
    assert len(files_in(tmp_path)) == 1


# -- taps: sinks in the middle of the stream -----------------------------------------------------------------------------


def batches(*keys, rejected=None):
    columns = {"k": pa.array(keys)} | ({REJECT: pa.array(rejected)} if rejected else {})
    return iter([pa.RecordBatch.from_pydict(columns)])


def test_a_tap_stages_the_rows_that_continue(tmp_path):
    reported = Reported()
    passed = list(tapper([stage(tmp_path, "tap")], reported)(batches("a", "b")))

    assert [batch.column("k").to_pylist() for batch in passed] == [["a", "b"]]
    (report,) = reported.sent
    assert (report.step, report.scope) == ("tap", "tap")
    assert read(tmp_path, staged_file(report.body)).column("k").to_pylist() == ["a", "b"]


def test_rejected_records_pass_a_tap_without_being_staged(tmp_path):
    reported = Reported()
    (passed,) = tapper([stage(tmp_path, "tap")], reported)(batches("a", "b", rejected=[None, "why"]))

    assert passed.num_rows == 2
    (report,) = reported.sent
    assert read(tmp_path, staged_file(report.body)).to_pydict() == {"k": ["a"]}


def test_a_task_that_is_cancelled_at_a_tap_leaves_no_file(tmp_path):
    reported = Reported()
    passing = tapper([stage(tmp_path, "tap")], reported)(batches("a", "b"))
    next(passing)
    passing.close()

    assert reported.sent == []
    assert files_in(tmp_path) == []
