"""The recovery advice of an error: possible commands, and the rows that they would repeat."""

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


def test_the_advice_for_damage_names_the_epoch_to_restore_and_its_dry_run() -> None:
    advised = with_recovery_advice(damage(sink="out"), "out", manifest("out"), {"out": 7}, "/store")
    assert isinstance(advised, EpochDamaged)
    assert "job.start(restore=7)" in advised.hint
    assert "spark-ckpt restore /store 7" in advised.hint
    assert advised.what == "file f.parquet is missing"
    assert advised.context == {"sink": "out", "epoch": 9, "expected": "5 bytes", "file": "f.parquet"}
    assert str(advised).count("f.parquet") == 1


def test_the_advice_names_rows_that_other_sinks_and_lanes_would_repeat() -> None:
    advised = with_recovery_advice(
        damage(published_lanes="0, 2"), "out", manifest("a", "b", "out"), {"a": 9, "b": 7, "out": 7}, "/store"
    )
    assert advised.context["would be repeated"] == "a has epoch 9; lanes 0, 2 of out have epoch 9"


def test_other_errors_get_no_advice() -> None:
    for error in (PublishFailed("away"), EpochDamaged("the table was dropped", hint="restore it")):
        assert with_recovery_advice(error, "out", manifest("out"), {}, "/store") is error


def test_a_sink_without_an_answer_may_get_repeated_rows() -> None:
    advised = with_recovery_advice(
        damage(), "out", manifest("a", "out"), {"a": 7}, "/store", back=7, unanswered={"a": 9, "out": 9}
    )
    assert advised.context["would be repeated"] == "a may have epoch 9"


def test_the_advice_names_the_latest_restorable_epoch_of_the_log() -> None:
    advised = with_recovery_advice(damage(), "out", manifest("a", "out"), {"a": 5}, "/store", back=4)
    assert "job.start(restore=4)" in advised.hint
    assert advised.context["would be repeated"] == "a has epoch 5"


def test_the_advice_for_refused_rows_is_an_older_epoch_or_the_old_sink() -> None:
    refused = RowsRefused("the table has no column v", hint="undo that change and start the job again", table="/t")
    advised = with_recovery_advice(refused, "out", manifest("out"), {"out": 7}, "/store", back=6)
    assert isinstance(advised, RowsRefused)
    assert advised.hint.startswith("undo that change and start the job again; or ")
    assert "job.start(restore=6)" in advised.hint
    assert "job.start(restore=6, accept_new_sink='out')" in advised.hint
    assert advised.context == {"sink": "out", "epoch": 9, "table": "/t", "restore": 6}


def test_the_advice_for_a_replaced_sink_has_the_epoch_and_the_confirmation() -> None:
    error = IdentityChanged("the table was re-created", hint="bring it back and start the job", sink="out")
    advised = with_recovery_advice(error, "out", manifest("a", "out"), {"a": 9, "out": 7}, "/store", back=6)
    assert isinstance(advised, IdentityChanged)
    assert advised.hint.startswith("bring it back and start the job; ")
    assert "job.start(restore=6, accept_new_sink='out')" in advised.hint
    assert advised.context == {
        "sink": "out", "epoch": 9, "restore": 6, "would be repeated": "a has epoch 9",
    }  # fmt: skip


def test_the_advice_for_a_refused_record_names_the_repeated_rows() -> None:
    error = RowsRefused("topic t never takes a record", hint="give a key", topic="t", row=3, published_lanes="0")
    advised = with_recovery_advice(error, "out", manifest("a", "out"), {"a": 9, "out": 7}, "/store", back=4)
    assert advised.context == {
        "sink": "out", "topic": "t", "row": 3, "epoch": 9, "restore": 4,
        "would be repeated": "a has epoch 9; lanes 0 of out have epoch 9",
    }  # fmt: skip


def conflict() -> PublishConflict:
    return PublishConflict("epoch 6: the target has epoch 5", sink="out", marker=5)


def test_the_error_of_a_sink_with_a_diverged_epoch_names_the_epoch_to_restore() -> None:
    advised = past_the_marker(conflict(), "out", (5,), back=3)
    assert "job.start(restore=3)" in advised.hint
    assert advised.context["would be repeated"] == "out has epoch 5"


def test_an_unknown_marker_has_no_advice() -> None:
    for error in (conflict(), PublishConflict("foreign"), PublishFailed("away")):
        assert past_the_marker(error, "out", (), back=3) is error
