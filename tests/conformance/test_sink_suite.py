"""The suite for sinks finds each planted fault, and accepts a sink without one."""

from __future__ import annotations

from pathlib import Path

import memory_sink as faulty
import pytest
from memory_sink import MemorySink, MergingSink, subject

from spark_ckpt.errors import CkptError
from spark_ckpt.testing import PromiseBroken, SinkConformance, SinkSubject

COUNTEREXAMPLES: dict[str, list[type[MemorySink]]] = {
    "rows_are_shown_when_their_epoch_is_published_and_not_before": [
        faulty.StagesIntoTheTarget,
        faulty.LosesTheLastFile,
    ],
    "what_is_published_again_is_not_shown_again": [faulty.HasNoMarker],
    "a_driver_that_died_before_the_acknowledgement_is_succeeded_without_a_double": [
        faulty.KeepsItsMarkerInTheProcess,
        faulty.NamesTheIncarnation,
    ],
    "epochs_follow_each_other": [faulty.WantsEveryNumber],
    "epochs_that_were_published_come_again_from_the_oldest": [faulty.ComparesWithTheLastEpochOnly],
    "an_epoch_without_rows_leaves_no_gap": [faulty.SkipsEmptyEpochs],
    "the_first_epoch_may_be_without_rows": [faulty.SkipsEmptyEpochs],
    "two_drivers_at_once_show_an_epoch_once": [faulty.ChecksThenActs],
    "closing_publishes_nothing": [faulty.PublishesWhenClosed],
    "sinks_and_stores_share_nothing": [faulty.SharesItsMarker, faulty.SharesItsMarkerBetweenStores],
    "a_zombie_is_refused_once_its_successor_has_published": [faulty.FencesNothing],
    "a_zombie_repeats_nothing_that_its_successor_published": [faulty.HasNoMarker],
    "a_staged_file_that_is_missing_is_damage": [
        faulty.ReadsUnverified,
        faulty.WritesBeforeItHasReadEverything,
        faulty.MarksBeforeItReads,
        faulty.CallsDamageAConflict,
    ],
    "a_staged_file_that_is_cut_is_damage": [faulty.ReadsUnverified],
    "a_staged_file_with_another_byte_is_damage": [faulty.ReadsUnverified],
    "another_decision_of_a_number_is_refused": [faulty.ForgetsTheDecision],
    "an_epoch_that_the_log_does_not_know_is_refused": [faulty.BelievesAnyMarker],
    "epochs_that_a_restore_left_behind_may_be_there": [faulty.KnowsNoDroppedEpochs],
    "an_epoch_of_another_branch_does_not_stand_for_this_one": [faulty.KnowsNoBranches],
    "a_marker_above_every_decided_epoch_is_refused": [faulty.BelievesAnyMarker],
    "a_target_that_has_lost_its_marker_is_refused": [faulty.BelievesAnyMarker],
    "a_target_that_lacks_rows_which_it_had_is_refused": [faulty.TakesAnyMarkerOfBefore],
    "a_target_in_the_place_of_another_begins_without_a_marker": [faulty.KnowsNoReplacement],
    "a_target_in_the_place_of_another_may_have_a_marker_of_the_time_before": [faulty.KnowsNoReturn],
    "rows_sent_early_are_shown_with_their_epoch_and_not_before": [
        faulty.ShowsEarlySends,
        faulty.SendsEverythingAgain,
    ],
    "rows_sent_early_for_an_epoch_that_is_given_up_are_not_shown": [
        faulty.KeepsAbortedRows,
        faulty.DropsNothing,
    ],
    "rows_that_a_dead_driver_sent_early_are_not_shown": [faulty.SharesOpenRows],
    "descriptions_are_texts_without_secrets": [faulty.ShowsItsPassword],
    "what_a_sink_tells_is_what_it_has_published": [faulty.ReportsAnOldEpoch, faulty.ReportsOthersEpochs],
    "telling_changes_nothing_and_fences_nobody": [faulty.FencesWhenAsked],
    "a_whole_result_replaces_the_rows_before": [
        faulty.AppendsWholeResults,
        faulty.KeepsRowsOfAnEmptyResult,
        faulty.ReplacesAlways,
    ],
    "an_identity_is_the_same_at_every_start": [faulty.IsAnotherOneAtEveryStart],
    "another_target_has_another_identity": [faulty.IsKnownByItsNameOnly],
    "tidying_removes_what_dead_drivers_left_and_nothing_else": [faulty.TidiesEverything, faulty.TidiesNothing],
}


class TestASinkWithoutAFault(SinkConformance):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> SinkSubject:
        return subject(MemorySink, tmp_path)


class TestASinkThatMergesByKey(SinkConformance):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> SinkSubject:
        return subject(MergingSink, tmp_path)


class TestASinkThatStagesInAPlaceOfItsOwn(SinkConformance):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> SinkSubject:
        return subject(MemorySink, tmp_path, staging=True)


@pytest.mark.parametrize(
    ("promise", "sink"), [(promise, sink) for promise, sinks in COUNTEREXAMPLES.items() for sink in sinks]
)
def test_a_planted_fault_is_found(promise: str, sink: type[MemorySink], tmp_path: Path) -> None:
    with pytest.raises((PromiseBroken, CkptError)):
        getattr(SinkConformance(), f"test_{promise}")(subject(sink, tmp_path, staging="tidying" in promise))


def test_every_promise_has_a_counterexample() -> None:
    promises = {name.removeprefix("test_") for name in dir(SinkConformance) if name.startswith("test_")}

    assert promises == set(COUNTEREXAMPLES)
