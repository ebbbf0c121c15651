"""Endpoints of sources and sinks are compared with the recorded ones: equal, refused, or confirmed at the start."""

from __future__ import annotations

import pytest

from spark_ckpt.epochs.identity import (
    Confirmed,
    Found,
    Known,
    Standing,
    check_unchanged,
    known,
    past_losses,
    reconciled,
    with_confirmation,
)
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.parts import differing
from spark_ckpt.epochs.records import EpochBrief, Manifest, SinkIdentity, StagedFileRecord, StagedOutput
from spark_ckpt.errors import ConfigInvalid, EpochDamaged, EpochNotFound, IdentityChanged, RowsLost

A = {"kind": "delta", "path": "/a", "table id": "1"}
B = {"kind": "delta", "path": "/b", "table id": "2"}
A_MOVED = {**A, "path": "/elsewhere"}
ABSENT = {**B, "table id": ""}
IN = {"kind": "files", "path": "/in"}


def standing(recorded=None, found=None, unpublished=None, last=7, **confirmed):
    """Reconcile one sink, `out`."""
    sinks = (
        {}
        if recorded is None
        else {"out": recorded if isinstance(recorded, SinkIdentity) else SinkIdentity(parts=recorded)}
    )
    return reconciled(
        Known({}, sinks), Found({}, {"out": A if found is None else found}), named(**confirmed), unpublished or {}, last
    )


def named(**confirmed):
    return Confirmed(**{kind: frozenset(names) for kind, names in confirmed.items()})


def manifest(epoch, base=0, rows=0, sink="out", **fields):
    file = StagedFileRecord(path="f", size_bytes=1, rows=rows, lane=0, batch=0, task=0, part=0)
    outputs = {sink: StagedOutput(sink=sink, files=(file,) if rows else (), rows=rows)}
    return Manifest(
        job="job", epoch=epoch, incarnation=1, attempt=f"a{epoch}", created_ms=0, base=base, outputs=outputs, **fields
    )


# -- equal endpoints -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recorded", "found", "contradictions"),
    [
        (A, A, []),
        (A, {**A, "new part": "x"}, []),
        ({**A, "table id": ""}, A, []),
        (A, {**A, "table id": ""}, ["table id"]),
        (A, {"kind": "delta", "path": "/a"}, ["table id"]),
        (A, B, ["path", "table id"]),
        (A, A_MOVED, ["path"]),
        (A, {}, ["kind", "path", "table id"]),
        ({}, A, []),
    ],
)
def test_a_recorded_part_must_be_equal_and_an_unknown_one_contradicts_nothing(recorded, found, contradictions):
    assert differing(recorded, found) == contradictions


def test_a_job_without_records_records_the_endpoints_it_finds():
    assert standing(None, A).sinks == {"out": SinkIdentity(parts=A)}


def test_the_id_of_a_table_that_the_sink_made_is_recorded_once_it_is_known():
    assert standing({**A, "table id": ""}, A).sinks["out"].parts == A
    assert Standing(sinks={"out": SinkIdentity(parts=ABSENT, after=3)}).learned("out", B).sinks == {
        "out": SinkIdentity(parts=B, after=3)
    }


def test_a_connector_without_identity_works_and_records_nothing():
    assert standing(None, {}).sinks == {}


def test_a_connector_without_identity_cannot_replace_one_with_an_identity():
    with pytest.raises(IdentityChanged, match="a connector without identity"):
        standing(A, {})


# -- refused endpoints -----------------------------------------------------------------------------------------------------


def test_another_table_is_refused_with_both_identities_and_both_remedies():
    with pytest.raises(IdentityChanged) as caught:
        standing(A, B)
    text = str(caught.value)
    assert "[CKPT_IDENTITY_CHANGED] sink 'out' is not what the job's epochs were made with" in text
    assert "recorded: kind delta, path /a, table id 1" in text
    assert "found: kind delta, path /b, table id 2" in text
    assert "correct the sink; or confirm the new one by name: job.start(accept_new_sink='out')" in text
    assert "--conf spark.ckpt.accept.new.sink=out" in text


def test_a_deleted_table_is_refused_before_the_sink_creates_it_again():
    with pytest.raises(IdentityChanged, match=r"found: kind delta, path /a, table id \(none yet\)"):
        standing(A, {**A, "table id": ""})


def test_swapped_names_are_reported_as_swapped():
    recorded = Known({}, {"x": SinkIdentity(parts=A), "y": SinkIdentity(parts=B)})
    with pytest.raises(IdentityChanged) as caught:
        reconciled(recorded, Found({}, {"x": B, "y": A}), Confirmed(), {}, 7)
    assert "sink 'x' and sink 'y' are not" in caught.value.what
    assert "sink 'x' is now what 'y' was: give each its old name back" in caught.value.hint
    assert caught.value.context["sink y found"] == "kind delta, path /a, table id 1"


def test_the_advice_for_a_restore_has_its_epoch_and_the_confirmation():
    recorded = Known({"in": IN}, {}, restore=4)
    with pytest.raises(IdentityChanged) as caught:
        reconciled(recorded, Found({"in": {**IN, "kind": "kafka"}}, {}), Confirmed(), {}, 7)
    assert "job.start(restore=4, accept_new_source='in')" in caught.value.hint


def test_a_confirmation_counts_only_for_its_name():
    recorded = Known({}, {"x": SinkIdentity(parts=A), "y": SinkIdentity(parts=B)})
    with pytest.raises(IdentityChanged, match="sink 'y' is not"):
        reconciled(recorded, Found({}, {"x": B, "y": A}), named(new_sinks=["x"]), {}, 7)


CHANGED = Found({"in": {**IN, "kind": "kafka"}}, {"x": B, "y": B, "z": A_MOVED})
NEW = "accept_new_sink=['x', 'y', 'z'], accept_new_source='in'"
NEW_BUT_Z = "accept_new_sink=['x', 'y'], accept_new_source='in', accept_moved='z'"


@pytest.mark.parametrize(
    ("confirmed", "call"),
    [
        ({}, NEW),
        ({}, NEW_BUT_Z),
        ({"new_sources": ["in"], "moved": ["z"]}, NEW_BUT_Z),
        ({"new_sinks": ["z"], "moved": ["x"]}, NEW),
        ({"new_sinks": ["x", "y"], "dropped_operators": ["sums"]}, f"{NEW_BUT_Z}, accept_dropped_operator='sums'"),
        (
            {"dropped_sources": ["old"], "lost_rows": ["in"]},
            f"{NEW}, accept_dropped_source='old', accept_lost_rows='in'",
        ),
    ],
)
def test_the_advice_is_one_call_that_confirms_every_change(confirmed, call):
    recorded = Known({"in": IN}, dict.fromkeys("xyz", SinkIdentity(parts=A)))
    with pytest.raises(IdentityChanged) as caught:
        reconciled(recorded, CHANGED, named(**confirmed), {}, 7)
    assert f"job.start({call}) (--conf spark.ckpt.accept.new.sink=x,y" in caught.value.hint


def test_the_advice_for_two_new_sinks_names_an_epoch_that_is_before_the_rows_of_both():
    unpublished = {sink: [manifest(epoch, rows=1, sink=sink)] for sink, epoch in (("x", 6), ("y", 4))}
    sinks = dict.fromkeys("xy", SinkIdentity(parts=A))
    recorded = Known({}, sinks, restorable(manifest(5), holding(3, "x"), manifest(2)))
    for confirmed in ({}, {"new_sinks": ["x", "y"]}):
        with pytest.raises(IdentityChanged) as caught:
            reconciled(recorded, Found({}, {"x": B, "y": B}), named(**confirmed), unpublished, 7)
        assert "job.start(restore=2, accept_new_sink=['x', 'y'])" in caught.value.hint


def test_a_confirmation_of_a_sink_does_not_count_for_a_source_of_that_name():
    recorded = Known({"io": IN}, {"io": SinkIdentity(parts=A)})
    found = Found({"io": {**IN, "path": "/other"}}, {"io": A})
    with pytest.raises(IdentityChanged, match="source 'io'"):
        reconciled(recorded, found, named(new_sinks=["io"]), {}, 7)


def test_a_confirmation_of_a_name_that_the_job_does_not_have_is_refused():
    with pytest.raises(ConfigInvalid, match="accept_new_sink names 'otu', which the job does not have"):
        standing(A, A, new_sinks=["otu"])


def test_an_unneeded_confirmation_is_reported_and_changes_nothing():
    kept = standing(SinkIdentity(parts=A, after=3), A, new_sinks=["out"])
    assert kept.sinks["out"] == SinkIdentity(parts=A, after=3)
    assert kept.unneeded == ("accept_new_sink='out'",)


# -- confirmed endpoints ---------------------------------------------------------------------------------------------------


def test_a_new_sink_begins_after_the_highest_epoch_ever_committed():
    accepted = standing(A, B, new_sinks=["out"], last=7)
    assert accepted.sinks["out"] == SinkIdentity(parts=B, after=7)
    assert accepted.published("out", acked=7) == (0, 7)
    assert accepted.published("out", acked=5) == (0, 7)
    assert accepted.published("out", acked=8) == (8, None)


def test_a_sink_that_was_never_replaced_has_the_epochs_it_acknowledged():
    assert standing(A, A).published("out", acked=7) == (7, None)
    assert standing(None, {}).published("out", acked=0) == (0, None)


def test_a_new_sink_is_refused_while_the_old_one_has_unpublished_rows():
    unpublished = {"out": [manifest(5, base=4), manifest(6, base=5, rows=3)]}
    recorded = Known({}, {"out": SinkIdentity(parts=A)}, restorable(manifest(6), holding(5, "out"), manifest(4)))
    with pytest.raises(IdentityChanged, match="committed epochs: 6") as caught:
        reconciled(recorded, Found({}, {"out": B}), named(new_sinks=["out"]), unpublished, 7)
    assert "job.start(restore=4, accept_new_sink='out')" in caught.value.hint


def test_the_error_of_an_unconfirmed_sink_names_the_restore_that_it_needs():
    unpublished = {"out": [manifest(6, base=5, rows=3)]}
    recorded = Known({}, {"out": SinkIdentity(parts=A)}, restorable(manifest(6), holding(5, "out"), manifest(4)))
    with pytest.raises(IdentityChanged) as caught:
        reconciled(recorded, Found({}, {"out": B}), Confirmed(), unpublished, 7)
    assert "job.start(restore=4, accept_new_sink='out')" in caught.value.hint


def test_an_unconfirmed_sink_without_unpublished_rows_needs_no_restore():
    with pytest.raises(IdentityChanged) as caught:
        standing(A, B, {"out": [manifest(6, base=5)]})
    assert "job.start(accept_new_sink='out')" in caught.value.hint


def test_a_new_sink_gets_no_rows_of_epochs_before_it():
    accepted = standing(A, B, {"out": [manifest(6, base=5)]}, new_sinks=["out"], last=7)
    assert [accepted.is_before("out", epoch) for epoch in (6, 7, 8)] == [True, True, False]
    assert not standing(A, A).is_before("out", 1)


def test_a_restore_of_rows_that_neither_sink_would_get_is_refused_with_advice():
    unpublished = {"out": [manifest(3, base=2, rows=1)]}
    recorded = Known({}, {"out": SinkIdentity(parts=B, after=4)}, restorable(manifest(3), manifest(2)))
    with pytest.raises(IdentityChanged, match="took the place of another one after epoch 4") as caught:
        reconciled(recorded, Found({}, {"out": B}), Confirmed(), unpublished, 7)
    assert "job.start(restore=2)" in caught.value.hint
    reconciled(recorded, Found({}, {"out": B}), Confirmed(), {"out": [manifest(5, base=2, rows=1)]}, 7)


def restorable(*manifests):
    """Epochs that can be restored, newest first."""
    return lambda: iter(manifests)


def holding(epoch, sink):
    return manifest(epoch, held={sink: manifest(epoch, rows=1, sink=sink).outputs[sink]})


def test_the_advice_names_an_epoch_that_can_be_restored():
    unpublished = {"out": [manifest(6, base=5, rows=3)]}
    recorded = Known({}, {"out": SinkIdentity(parts=A)}, restorable(manifest(6), manifest(3)))  # 5 and 4 are damaged
    with pytest.raises(IdentityChanged) as caught:
        reconciled(recorded, Found({}, {"out": B}), named(new_sinks=["out"]), unpublished, 7)
    assert "job.start(restore=3, accept_new_sink='out')" in caught.value.hint


def test_a_new_sink_is_refused_while_rows_for_the_old_one_are_deferred():
    holding = manifest(6, base=5, rows=3)
    holding = holding.model_copy(update={"held": holding.outputs, "outputs": {}})
    with pytest.raises(IdentityChanged, match="committed epochs: 6"):
        standing(A, B, {"out": [holding]}, new_sinks=["out"])


def test_unpublished_epochs_without_rows_for_the_sink_allow_a_new_one():
    unpublished = {"out": [manifest(6, base=5)], "other": [manifest(6, base=5, rows=3, sink="other")]}
    assert standing(A, B, unpublished, new_sinks=["out"]).sinks["out"].after == 7


def test_the_same_table_at_another_path_continues_once_confirmed():
    with pytest.raises(IdentityChanged, match="the same one, moved") as caught:
        standing(SinkIdentity(parts=A, after=3), A_MOVED)
    assert "accept_moved='out'" in caught.value.hint
    unpublished = {"out": [manifest(6, base=5, rows=3)]}
    moved = standing(SinkIdentity(parts=A, after=3), A_MOVED, unpublished, moved=["out"])
    assert moved.sinks["out"] == SinkIdentity(parts=A_MOVED, after=3)


def test_a_sink_without_a_recorded_identity_is_new_if_the_start_confirms_it():
    for found in (A, {**A, "table id": ""}):
        confirmed = standing({**A, "table id": ""}, found, new_sinks=["out"])
        assert (confirmed.sinks["out"].after, confirmed.unneeded) == (7, ())
    assert standing({**A, "table id": ""}, A).sinks["out"].after == 0


def test_a_start_without_the_confirmation_publishes_to_a_new_topic_that_has_no_id_yet():
    # The first start confirmed it, and ended before the topic was created.
    recorded, unpublished = SinkIdentity(parts={**A, "table id": ""}, after=5), {"out": [manifest(6, base=5, rows=3)]}
    with pytest.raises(IdentityChanged) as refused:
        standing(recorded, recorded.parts, unpublished, new_sinks=["out"])
    assert "without accept_new_sink" in refused.value.hint
    assert standing(recorded, recorded.parts, unpublished).sinks["out"].after == 5


def test_another_table_cannot_be_confirmed_as_moved():
    with pytest.raises(IdentityChanged) as caught:
        standing(A, B, moved=["out"])
    assert "moved" not in caught.value.hint


def test_a_new_source_begins_at_its_start_and_a_moved_one_continues():
    recorded, found = Known({"in": IN}, {}), Found({"in": {**IN, "path": "/other"}}, {})
    fresh = reconciled(recorded, found, named(new_sources=["in"]), {}, 7)
    assert (fresh.fresh, fresh.goes_on({"in": {"n": 5}, "else": {"n": 1}})) == (frozenset({"in"}), {"else": {"n": 1}})
    moved = reconciled(recorded, found, named(moved=["in"]), {}, 7)
    assert moved.goes_on({"in": {"n": 5}}) == {"in": {"n": 5}}
    assert moved.sources == fresh.sources == {"in": {"kind": "files", "path": "/other"}}


# -- lost rows ------------------------------------------------------------------------------------------------------------


PAST = {"in": lambda cursor: {"n": max(int(cursor["n"]), 7)}}
"""The source begins at row 7."""


@pytest.mark.parametrize(
    ("confirmed", "cursor", "continues", "needless"),
    [
        (["in"], 5, 7, ()),
        (["in"], 9, 9, ("accept_lost_rows='in'",)),
        ([], 5, 5, ()),
    ],
)
def test_a_source_continues_behind_lost_rows_only_if_the_loss_is_confirmed(confirmed, cursor, continues, needless):
    settled = past_losses(Standing(), named(lost_rows=confirmed), {"in": {"n": cursor}}, PAST)
    assert (settled.goes_on({"in": {"n": cursor}}), settled.unneeded) == ({"in": {"n": continues}}, needless)


def test_a_new_source_has_no_position_that_rows_are_lost_after():
    fresh = Standing(fresh=frozenset({"in"}))
    assert past_losses(fresh, named(lost_rows=["in"]), {"in": {"n": 5}}, PAST).goes_on({"in": {"n": 5}}) == {}


def test_a_removed_source_leaves_no_cursor_once_its_removal_is_confirmed():
    recorded, found = Known({"in": IN, "old": IN}, {}), Found({"in": IN}, {})
    cursors = {"in": {"n": 5}, "old": {"n": 1}}
    kept = reconciled(recorded, found, named(dropped_sources=["old"]), {}, 7)
    assert (kept.goes_on(cursors), dict(kept.sources)) == ({"in": {"n": 5}}, {"in": IN})
    assert reconciled(recorded, found, named(), {}, 7).goes_on(cursors) == cursors


def test_a_source_that_cannot_skip_rows_refuses_the_confirmation():
    with pytest.raises(ConfigInvalid, match="'rate', which cannot continue"):
        past_losses(Standing(), named(lost_rows=["rate"]), {"rate": {"n": 5}}, PAST)


def test_a_confirmed_loss_of_a_source_that_the_job_does_not_have_is_refused():
    with pytest.raises(ConfigInvalid, match="accept_lost_rows names 'no'"):
        reconciled(Known({}, {}), Found({"in": {}}, {}), named(lost_rows=["no"]), {}, 7)


@pytest.mark.parametrize(("restore", "call"), [("latest", "("), (5, "(restore=5, "), ("v1", "(restore='v1', ")])
def test_the_confirmation_of_a_loss_repeats_the_requested_epoch(restore, call):
    error = with_confirmation(RowsLost("gone", hint="keep more", table="t"), ["in"], restore, Confirmed())
    assert f"job.start{call}accept_lost_rows='in')" in error.hint
    assert error.context == {"table": "t", "source": "in"}


def test_the_call_of_an_advice_repeats_what_the_refused_start_has_confirmed():
    confirmed = named(dropped_sources=["old"], lost_rows=["in"], new_sinks=["out"])
    hint = with_confirmation(RowsLost("gone", hint="keep more"), ["also"], 5, confirmed).hint
    call = "job.start(restore=5, accept_new_sink='out', accept_dropped_source='old', accept_lost_rows=['also', 'in'])"
    assert call in hint


# -- recorded endpoints ----------------------------------------------------------------------------------------------------


def log_of(*manifests):
    by_id = {each.epoch: EpochBrief.of(each, 0) for each in manifests}
    return LogState(job="job", last=max(by_id), latest=max(by_id), by_id=by_id), {
        each.epoch: each for each in manifests
    }.__getitem__


def test_a_sink_is_compared_with_the_newest_epoch_and_a_source_with_the_restored_one():
    old, new = {"in": IN}, {"in": {**IN, "path": "/new"}}
    first = manifest(1, cursors={"in": {}}, source_identities=old, sink_identities={"out": SinkIdentity(parts=A)})
    second = manifest(
        2, base=1, cursors={"in": {}}, source_identities=new, sink_identities={"out": SinkIdentity(parts=B, after=1)}
    )
    log_state, read = log_of(first, second)
    assert known(log_state, first, read, restorable()) == Known(old, {"out": SinkIdentity(parts=B, after=1)})
    assert [known(log_state, second, read, restorable(), named).restore for named in (False, True)] == [
        None,
        second.epoch,
    ]
    assert known(log_state, second, read, restorable()) == Known(new, {"out": SinkIdentity(parts=B, after=1)})


def test_an_epoch_without_identities_uses_those_recorded_next():
    first = manifest(1, cursors={"in": {}})
    second = manifest(2, base=1, cursors={"in": {}}, source_identities={"in": IN})
    third = manifest(3, base=2, cursors={"in": {}}, source_identities={"in": {**IN, "path": "/new"}})
    log_state, read = log_of(first, second, third)
    assert known(log_state, first, read, restorable()).sources == {"in": IN}
    assert known(*log_of(first)[:1], first, read, restorable()).sources == {"in": {}}


@pytest.mark.parametrize("unreadable", [EpochDamaged, EpochNotFound])
def test_endpoints_come_from_the_newest_readable_epoch(unreadable):
    """An epoch may be damaged, or retention of another driver dropped it after the log was read."""
    first = manifest(1, cursors={"in": {}}, sink_identities={"out": SinkIdentity(parts=A)})
    log_state, _ = log_of(first, manifest(2, base=1), manifest(3, base=2))

    def read(epoch):
        if epoch == 3:
            raise unreadable("no")
        return manifest(2, base=1, sink_identities={"out": SinkIdentity(parts=B)})

    assert known(log_state, first, read, restorable()).sinks == {"out": SinkIdentity(parts=B)}


def test_a_dropped_sinks_identity_stays_so_that_its_name_cannot_come_back_as_another_table():
    recorded = Known({}, {"out": SinkIdentity(parts=A), "gone": SinkIdentity(parts=B, after=2)})
    kept = reconciled(recorded, Found({}, {"out": A}), Confirmed(), {}, 7)
    assert kept.sinks["gone"] == SinkIdentity(parts=B, after=2)
    with pytest.raises(IdentityChanged, match="sink 'gone'"):
        reconciled(Known({}, kept.sinks), Found({}, {"out": A, "gone": {**A, "path": "/c"}}), Confirmed(), {}, 7)


def test_a_renamed_and_an_added_sink_need_no_confirmation():
    recorded = Known({}, {"out": SinkIdentity(parts=A)})
    added = reconciled(recorded, Found({}, {"out": A, "more": B}), Confirmed(), {}, 7)
    assert added.sinks["more"] == SinkIdentity(parts=B, after=0)
    renamed = reconciled(recorded, Found({}, {"result": A}), Confirmed(), {}, 7)
    assert renamed.sinks["result"] == SinkIdentity(parts=A, after=0)


def test_a_table_that_is_re_created_while_the_job_runs_is_noticed():
    check_unchanged(Found({}, {"out": {**A, "table id": ""}}), Found({}, {"out": A}))
    with pytest.raises(IdentityChanged, match="sink 'out'"):
        check_unchanged(Found({}, {"out": A}), Found({}, {"out": {**A, "table id": "9"}}))


def test_a_source_that_is_replaced_while_the_job_runs_is_noticed():
    with pytest.raises(IdentityChanged, match="source 'in'"):
        check_unchanged(Found({"in": A}, {}), Found({"in": {**A, "table id": "9"}}, {}))


def test_a_sink_is_not_replaced_while_the_old_one_may_lack_rows():
    recorded = Known({}, {"out": SinkIdentity(parts=A)}, restorable(manifest(4)))
    with pytest.raises(IdentityChanged) as caught:
        reconciled(recorded, Found({}, {"out": B}), named(new_sinks=["out"]), {"out": [manifest(5, base=4, rows=3)]}, 7)
    assert "job.start(restore=4, accept_new_sink='out')" in caught.value.hint
