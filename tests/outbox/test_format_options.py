"""Options of `format("outbox")`: a wrong option is refused by name, before a batch is staged."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType
from spark_ckpt_delta import DeltaSink

import spark_ckpt as ckpt
from pyspark_outbox import DefaultSource
from spark_ckpt.connector import SinkRows
from spark_ckpt.errors import ConfigInvalid, EnvironmentUnfit, EpochDamaged
from spark_ckpt.outbox.batch_writer import CommittingWriter, chosen_columns, hint_of_format, no_session
from spark_ckpt.outbox.data_source import named_outbox, settings_of
from spark_ckpt.outbox.rule import Accepted
from spark_ckpt.spark_versions import require_spark_of_format

QUERY = StructType().add("k", "string").add("n", "long").add("a b", "double").add("big", "boolean")
HERE = __name__


@pytest.fixture(autouse=True)
def outboxes(tmp_path, monkeypatch):
    sinks = {"gold": DeltaSink(str(tmp_path / "gold"))}
    made = ckpt.Outbox(str(tmp_path / "store"), name="orders", sinks=sinks)
    served = ckpt.Outbox(str(tmp_path / "store"), name="orders", sinks=sinks, metrics="prometheus")
    behind = ckpt.Outbox(str(tmp_path / "store"), name="orders", sinks=sinks, overlap=True)
    for name, value in {"behind": behind, "made": made, "making": lambda: made, "served": served, "wrong": 1}.items():
        monkeypatch.setitem(globals(), name, value)
    return made


def options(tmp_path, outbox="made", **more):
    return CaseInsensitiveDict(
        {"outbox": f"{HERE}:{outbox}", "checkpointlocation": str(tmp_path / "checkpoint"), **more}
    )


@pytest.mark.parametrize("attribute", ["made", "making"])
def test_an_option_names_an_outbox_or_a_function_that_makes_it(outboxes, attribute):
    assert named_outbox(f"{HERE}:{attribute}") is outboxes


@pytest.mark.parametrize(
    "reference", ["", "made", f"{HERE}:", f"{HERE}:wrong", f"{HERE}:none", "no_module:out", "a:b()"]
)
def test_an_option_that_names_no_outbox_is_refused(reference):
    with pytest.raises(ConfigInvalid):
        named_outbox(reference)


def test_the_options_confirm_changes_as_the_arguments_of_a_start(tmp_path):
    given = options(tmp_path, restore="3", ACCEPT_QUERY="q2", accept_new_sink="gold, alerts")
    settings = settings_of(given, "1", overwrite=False)
    assert settings.accepted == Accepted("q2", 3)
    assert settings.confirmed.new_sinks == {"gold", "alerts"}
    assert settings.checkpoint == str(tmp_path / "checkpoint")


def test_a_start_takes_an_epoch_of_a_command_line(outboxes):
    """Before, the error said that epoch 3 is not among the kept ones, which it named."""
    assert outboxes.confirmed("3", "", (), ()).accepted == Accepted(restore=3)


def test_options_that_cannot_work_are_refused(tmp_path):
    without = {name: value for name, value in options(tmp_path).items() if name != "checkpointlocation"}
    for given, overwrite in (
        (without, False),
        (options(tmp_path), True),
        (options(tmp_path, restore="newest"), False),
        (options(tmp_path, restore="²"), False),
        (options(tmp_path, "served"), False),
        (options(tmp_path, "behind"), False),
    ):
        with pytest.raises(ConfigInvalid):
            settings_of(given, "1", overwrite)


def test_output_mode_complete_leads_to_a_start_that_can_have_update(tmp_path):
    # Spark refuses update for a data source in Python.
    with pytest.raises(ConfigInvalid) as refused:
        settings_of(options(tmp_path), "1", overwrite=True)
    assert "Outbox.start(writer)" in refused.value.hint.partition("update")[0]


def test_spark_finds_the_format_by_the_name_of_its_module():
    assert DefaultSource is ckpt.OutboxDataSource
    assert DefaultSource.name() == "outbox"


def test_the_object_that_spark_pickles_commits(tmp_path):
    source = pickle.loads(pickle.dumps(DefaultSource(options(tmp_path))))
    assert isinstance(source.streamWriter(QUERY, False), CommittingWriter)


def test_a_batch_without_the_message_of_a_task_is_not_committed(tmp_path):
    writer = CommittingWriter(settings_of(options(tmp_path), "1", overwrite=False), QUERY)
    with pytest.raises(EpochDamaged):
        writer.commit([None], 0)


def test_a_sink_gets_columns_by_name_and_rows_by_a_boolean_column():
    rows = SinkRows(DeltaSink("unused"), ("k", "`a b`"), {"twice": "n"}, "big")
    chosen = chosen_columns("gold", rows, QUERY)
    batch = pa.RecordBatch.from_pylist(
        [{"k": str(n), "n": n, "a b": n / 2, "big": big} for n, big in enumerate([True, None, False])],
        pa.schema([("k", pa.string()), ("n", pa.int64()), ("a b", pa.float64()), ("big", pa.bool_())]),
    )
    assert chosen.rows(batch).to_pylist() == [{"k": "0", "a b": 0.0, "twice": 0}]
    assert chosen.schema(QUERY).names == ["k", "a b", "twice"]


@pytest.mark.parametrize(
    "rows",
    [{"columns": ("n * 2",)}, {"columns": ("a.b",)}, {"named": {"m": "n + 1"}}, {"where": "n > 1"}, {"where": "n"}],
)
def test_an_expression_is_refused(rows):
    with pytest.raises(ConfigInvalid):
        chosen_columns("gold", SinkRows(DeltaSink("unused"), **rows), QUERY)


def test_the_use_of_a_session_is_refused_with_the_sink():
    with pytest.raises(ConfigInvalid, match="sink 'gold' needs Spark"):
        no_session("sink 'gold'").conf.get("x")


def test_a_hint_names_the_option_of_its_argument():
    assert hint_of_format("stop").endswith("stop")
    assert '.option("accept_query", ...)' in hint_of_format("start it with accept_query='q2'")


def test_an_older_pyspark_is_refused():
    with pytest.raises(EnvironmentUnfit):
        require_spark_of_format("4.0.1")
    require_spark_of_format("4.1.0")
