"""The suite for sources finds each planted fault, and accepts a source without one."""

from __future__ import annotations

import memory_source as faulty
import pytest
from memory_source import MemorySource, RememberingSource, SkippingSource, WritesItsMemory, subject

from spark_ckpt.errors import CkptError
from spark_ckpt.testing import PromiseBroken, SourceConformance, SourceSubject

COUNTEREXAMPLES: dict[str, list[type[MemorySource]]] = {
    "every_row_is_read_once": [
        faulty.LosesTheFirstRowOfABatch,
        faulty.StartsInclusive,
        faulty.HasNoJson,
        faulty.HasTuples,
    ],
    "a_new_driver_continues_at_every_cut": [faulty.GivesNoBatch, faulty.CountsFromItsStart, faulty.StartsInclusive],
    "the_same_rows_come_again": [faulty.ForgetsWhatItHasGiven],
    "a_batch_that_is_run_again_has_the_same_rows": [faulty.ReadsToTheNewest, faulty.ForgetsWhatItHasGiven],
    "columns_are_the_same_at_every_cursor": [faulty.ChangesItsColumns, faulty.KnowsOtherColumns],
    "the_end_is_reached_when_everything_is_read": [
        faulty.GivesNoBatch,
        faulty.IsThereFromTheStart,
        faulty.NeverArrives,
        faulty.ArrivesThoughEndless,
    ],
    "the_end_moves_with_the_input": [faulty.GivesNoBatch, faulty.AsksForTheEndOfNow, faulty.HasAnEndThatStays],
    "cursors_only_go_forward": [faulty.ComparesForEquality],
    "a_cursor_of_something_else_is_refused": [faulty.TakesAnyCursor, faulty.StumblesOverItsCursor],
    "a_damaged_cursor_is_refused_or_harmless": [faulty.TakesAnyCursor, faulty.StumblesOverItsCursor],
    "input_that_is_lost_is_not_passed_over": [faulty.SkipsWhatIsGone, faulty.ChecksNoCursor],
    "a_confirmed_loss_skips_no_row_behind_the_lost_ones": [
        faulty.StaysBeforeTheLoss,
        faulty.SkipsMoreEachTime,
        faulty.SkipsRowsThatAreYetToCome,
        faulty.SkipsToTheEnd,
    ],
    "descriptions_are_texts_without_secrets": [faulty.ShowsItsPassword],
    "an_identity_is_the_same_at_every_start": [faulty.IsAnotherOneWithEveryRow],
    "another_input_has_another_identity": [faulty.IsKnownByItsNameOnly],
    "another_input_under_a_running_driver_is_not_passed_over": [
        faulty.RemembersItsIdentity,
        faulty.IsKnownByItsNameOnly,
        faulty.GivesNoBatch,
    ],
    "what_can_be_read_again_is_not_refused": [faulty.ChecksTooMuch, faulty.WritesWhenItChecks],
    "damaged_memory_is_found_without_the_job": [
        faulty.FindsNoDamage,
        faulty.FindsDamageInTheWhole,
        faulty.FindsDamageWithSizesOnly,
    ],
    "what_is_kept_can_be_read_after_a_release": [faulty.GivesNoBatch, faulty.ReleasesWhatIsKept],
    "limited_batches_have_no_more_rows_and_the_same_ones": [
        faulty.GivesNoBatch,
        faulty.LimitsNothing,
        faulty.LimitsForGood,
    ],
}


class TestASourceWithoutAFault(SourceConformance):
    @pytest.fixture
    def subject(self) -> SourceSubject:
        return subject(MemorySource)


class TestASourceThatRemembers(SourceConformance):
    @pytest.fixture
    def subject(self) -> SourceSubject:
        return subject(RememberingSource)


class TestASourceWhoseMemoryCanBeChecked(SourceConformance):
    @pytest.fixture
    def subject(self) -> SourceSubject:
        return subject(WritesItsMemory)


class TestASourceThatSkipsLostRows(SourceConformance):
    @pytest.fixture
    def subject(self) -> SourceSubject:
        return subject(SkippingSource)


@pytest.mark.parametrize(
    ("promise", "source"), [(promise, source) for promise, sources in COUNTEREXAMPLES.items() for source in sources]
)
def test_a_planted_fault_is_found(promise: str, source: type[MemorySource]) -> None:
    with pytest.raises((PromiseBroken, CkptError)):
        getattr(SourceConformance(), f"test_{promise}")(subject(source))


def test_every_promise_has_a_counterexample() -> None:
    promises = {name.removeprefix("test_") for name in dir(SourceConformance) if name.startswith("test_")}

    assert promises == set(COUNTEREXAMPLES)
