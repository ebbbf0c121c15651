"""The error of a damaged epoch names what a person can do, and what it would repeat."""

from __future__ import annotations

from spark_ckpt.content import damaged
from spark_ckpt.epochs.records import Manifest, StagedOutput
from spark_ckpt.epochs.ways_back import past_the_marker, with_recovery_advice
from spark_ckpt.errors import EpochDamaged, IdentityChanged, PublishConflict, PublishFailed, RowsRefused


def manifest(*sinks: str) -> Manifest:
    outputs = {sink: StagedOutput(sink=sink) for sink in sinks}
    return Manifest(job="j", epoch=9, incarnation=2, attempt="a", base=7, previous=8, created_ms=0, outputs=outputs)


def damage(**context: object) -> EpochDamaged:
    return damaged("f.parquet", "is missing", epoch=9, expected="5 bytes", **context)


def test_damage_names_the_epoch_to_go_back_to_and_how_to_see_it_first() -> None:
    told = with_recovery_advice(damage(sink="out"), "out", manifest("out"), {"out": 7}, "/store")
    assert isinstance(told, EpochDamaged)
    assert "job.start(restore=7)" in told.hint
    assert "spark-ckpt restore /store 7" in told.hint
    assert told.what == "file f.parquet is missing"
    assert told.context == {"sink": "out", "epoch": 9, "expected": "5 bytes", "file": "f.parquet"}
    assert str(told).count("f.parquet") == 1


def test_what_other_sinks_and_lanes_have_already_is_said_to_be_repeated() -> None:
    told = with_recovery_advice(
        damage(published_lanes="0, 2"), "out", manifest("a", "b", "out"), {"a": 9, "b": 7, "out": 7}, "/store"
    )
    assert told.context["would be repeated"] == "a has epoch 9; lanes 0, 2 of out have epoch 9"


def test_other_errors_stay_what_they_are() -> None:
    for error in (PublishFailed("away"), EpochDamaged("the table was dropped", hint="restore it")):
        assert with_recovery_advice(error, "out", manifest("out"), {}, "/store") is error


def test_a_sink_that_has_not_answered_yet_may_have_what_would_be_repeated() -> None:
    told = with_recovery_advice(
        damage(), "out", manifest("a", "out"), {"a": 7}, "/store", back=7, unanswered={"a": 9, "out": 9}
    )
    assert told.context["would be repeated"] == "a may have epoch 9"


def test_the_epoch_that_the_log_says_can_be_gone_back_to_is_the_one_that_is_named() -> None:
    told = with_recovery_advice(damage(), "out", manifest("a", "out"), {"a": 5}, "/store", back=4)
    assert "job.start(restore=4)" in told.hint
    assert told.context["would be repeated"] == "a has epoch 5"


def test_rows_that_a_sink_refuses_lead_back_before_their_epoch_or_to_the_sink_as_it_was() -> None:
    refused = RowsRefused("the table has no column v", hint="undo that change and start the job again", table="/t")
    told = with_recovery_advice(refused, "out", manifest("out"), {"out": 7}, "/store", back=6)
    assert isinstance(told, RowsRefused)
    assert told.hint.startswith("undo that change and start the job again; or ")
    assert "job.start(restore=6)" in told.hint
    assert "job.start(restore=6, accept_new_sink='out')" in told.hint
    assert told.context == {"sink": "out", "epoch": 9, "table": "/t", "restore": 6}


def test_a_sink_that_is_another_one_leads_to_a_start_with_the_epoch_and_the_confirmation() -> None:
    error = IdentityChanged("the table was re-created", hint="bring it back and start the job", sink="out")
    told = with_recovery_advice(error, "out", manifest("a", "out"), {"a": 9, "out": 7}, "/store", back=6)
    assert isinstance(told, IdentityChanged)
    assert told.hint.startswith("bring it back and start the job; ")
    assert "job.start(restore=6, accept_new_sink='out')" in told.hint
    assert told.context == {
        "sink": "out", "epoch": 9, "restore": 6, "would be repeated": "a has epoch 9",
    }  # fmt: skip


def test_a_record_that_is_never_taken_names_what_would_be_repeated() -> None:
    error = RowsRefused("topic t never takes a record", hint="give a key", topic="t", row=3, published_lanes="0")
    told = with_recovery_advice(error, "out", manifest("a", "out"), {"a": 9, "out": 7}, "/store", back=4)
    assert told.context == {
        "sink": "out", "topic": "t", "row": 3, "epoch": 9, "restore": 4,
        "would be repeated": "a has epoch 9; lanes 0 of out have epoch 9",
    }  # fmt: skip


def conflict() -> PublishConflict:
    return PublishConflict("epoch 6: the target has epoch 5", sink="out", marker=5)


def test_the_error_of_a_sink_that_has_another_branch_names_where_to_go_back_to() -> None:
    told = past_the_marker(conflict(), "out", (5,), back=3)
    assert "job.start(restore=3)" in told.hint
    assert told.context["would be repeated"] == "out has epoch 5"


def test_a_marker_that_nobody_knows_names_no_way() -> None:
    for error in (conflict(), PublishConflict("foreign"), PublishFailed("away")):
        assert past_the_marker(error, "out", (), back=3) is error
