"""The promises of a sink, each as a test. Derive a class from `SinkConformance` and give it a fixture `subject`."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlsplit

from checkpoint_protocols.ids import Epoch
from spark_ckpt.connector import (
    EarlyPublisher,
    Identified,
    ReplacesRows,
    SendsEarly,
    StagedFile,
    TellsPublished,
    Tidies,
)
from spark_ckpt.errors import CkptError, EpochDamaged, Fenced, PublishConflict
from spark_ckpt.testing.promises import refused, require, require_described, skip
from spark_ckpt.testing.sink_subject import SinkSubject, WritingJob, texts


class _ExactlyOnce:
    """Rows of committed epochs are shown once, under any repetition."""

    def test_rows_are_shown_when_their_epoch_is_published_and_not_before(self, subject: SinkSubject) -> None:
        """Staging shows nothing; the receipt counts the rows."""
        with WritingJob(subject) as job:
            driver, output = job.driver(), job.decided(1)
            job.require_shown("staged rows are not shown before their epoch is published")
            receipt = job.publish(driver, output)
            job.expect(1)
            job.require_shown("the rows of a published epoch are shown")
            due = (1, subject.rows(1).num_rows, False)
            require(
                (receipt.epoch, receipt.rows, receipt.replayed) == due, "a receipt says what was done", receipt=receipt
            )

    def test_what_is_published_again_is_not_shown_again(self, subject: SinkSubject) -> None:
        """One driver makes the same call twice."""
        with WritingJob(subject) as job:
            driver, output = job.driver(), job.decided(1)
            driver.publish(output)
            again = driver.publish(output)
            job.expect(1)
            job.require_shown("an epoch that is published twice is shown once")
            require(again.replayed, "a receipt says that the sink already had the epoch", receipt=again)

    def test_a_driver_that_died_before_the_acknowledgement_is_succeeded_without_a_double(
        self, subject: SinkSubject
    ) -> None:
        """Another sink object and another incarnation publish the same epoch, then later ones."""
        with WritingJob(subject) as job:
            output = job.decided(1)
            job.driver(1).publish(output)  # not `job.publish`: the driver dies before the acknowledgement
            successor = job.driver(2)
            again = job.publish(successor, replace(output, incarnation=job.context(2).incarnation))
            job.expect(1)
            job.require_shown("what a dead driver published is not shown again by its successor")
            require(again.replayed, "a successor's receipt says that the sink already had the epoch", receipt=again)
            job.publish(successor, job.decided(2, 2))
            job.expect(2)
            job.require_shown("the successor publishes what follows")

    def test_epochs_follow_each_other(self, subject: SinkSubject) -> None:
        """Numbers may have gaps: an aborted epoch leaves one."""
        with WritingJob(subject) as job:
            driver = job.driver()
            for epoch in (1, 2, 5):
                job.publish(driver, job.decided(epoch))
                job.expect(epoch)
                job.require_shown("after each publish the epochs so far are shown", epoch=epoch)

    def test_epochs_that_were_published_come_again_from_the_oldest(self, subject: SinkSubject) -> None:
        """A driver whose log has no acknowledgement publishes everything again, in order."""
        with WritingJob(subject) as job:
            driver, first = job.driver(1), job.decided(1)
            driver.publish(first)
            second = job.decided(2, previous=Epoch(1), acked=Epoch(1))
            driver.publish(second)
            successor = job.driver(2)
            for output in (first, second):
                # Without an acknowledgement in its log, the successor counts from the oldest epoch.
                again = replace(output, incarnation=job.context(2).incarnation, previous=Epoch(output.epoch - 1))
                receipt = successor.publish(replace(again, acked=Epoch(0), newest=Epoch(2)))
                require(
                    receipt.replayed,
                    "an epoch below the newest published one is one that the sink has",
                    receipt=receipt,
                )
            job.expect(1, 2)
            job.require_shown("epochs that are published again from the oldest are shown once")

    def test_an_epoch_without_rows_leaves_no_gap(self, subject: SinkSubject) -> None:
        """It may also be published again."""
        with WritingJob(subject) as job:
            driver = job.driver()
            job.publish(driver, job.decided(1))
            job.expect(1)
            empty = job.decided(2, empty=True)
            for publisher in (driver, job.driver(2)):
                require(publisher.publish(empty).rows == 0, "an epoch without rows has none")
            job.acked = 2  # the publishes above did not acknowledge
            job.publish(job.driver(3), job.decided(3, 3))
            job.expect(3)
            job.require_shown("an epoch without rows is followed by the next one")

    def test_the_first_epoch_may_be_without_rows(self, subject: SinkSubject) -> None:
        """The log then has an acknowledgement of the sink, although no row is shown."""
        with WritingJob(subject) as job:
            job.publish(job.driver(1), job.decided(1, empty=True))
            job.publish(job.driver(2), job.decided(2, 2))
            job.expect(2)
            job.require_shown("a first epoch without rows is followed by the next one")

    def test_two_drivers_at_once_show_an_epoch_once(self, subject: SinkSubject) -> None:
        """One of them may be refused, or both may succeed. A successor completes the publish."""
        with WritingJob(subject) as job:
            output = job.decided(1)

            def publish(incarnation: int) -> None:
                driver = job.driver(incarnation)
                with suppress(CkptError):
                    driver.publish(replace(output, incarnation=job.context(incarnation).incarnation))
                job.close(driver)

            with ThreadPoolExecutor(2) as pool:
                list(pool.map(publish, (1, 2)))
            job.driver(3).publish(replace(output, incarnation=job.context(3).incarnation))
            job.expect(1)
            job.require_shown("an epoch that two drivers publish at the same time is shown once")

    def test_closing_publishes_nothing(self, subject: SinkSubject) -> None:
        """An unpublished epoch stays staged."""
        with WritingJob(subject) as job:
            driver = job.driver()
            job.decided(1)
            job.close(driver)
            job.require_shown("closing a publisher publishes nothing")

    def test_sinks_and_stores_share_nothing(self, subject: SinkSubject) -> None:
        """Two jobs, or two sinks of a job, that write to one target have markers of their own."""
        with WritingJob(subject) as job, WritingJob(subject, "other") as beside, WritingJob(subject) as another:
            # Each has rows of its own: a sink that merges by key would show equal ones once.
            for number, (each, whose) in enumerate(
                [(job, "the"), (beside, "another sink's"), (another, "another store's")], 1
            ):
                receipt = each.driver().publish(each.decided(1, files=each.staged(number)))
                require(not receipt.replayed, f"{whose} epoch 1 is published", receipt=receipt)
            job.expect(1, 2, 3)
            job.require_shown("every sink's rows are shown")


class _SinkRefusals:
    """Publishing is never a guess: an output that contradicts the log is refused, and none of its rows are shown."""

    def test_a_zombie_is_refused_once_its_successor_has_published(self, subject: SinkSubject) -> None:
        """The zombie opened its publisher earlier."""
        if not subject.fences:
            skip("the sink does not claim to fence")
        with WritingJob(subject) as job:
            zombie = job.driver(1)
            job.publish(zombie, job.decided(1))
            job.publish(job.driver(2), job.decided(2, 2))
            job.expect(1, 2)
            with refused(Fenced, "a driver is fenced once a newer one has published"):
                zombie.publish(job.decided(3))
            job.require_shown("nothing of a fenced driver's epoch is shown")

    def test_a_zombie_repeats_nothing_that_its_successor_published(self, subject: SinkSubject) -> None:
        """It may be refused, or get a receipt that the sink already has the epoch."""
        with WritingJob(subject) as job:
            zombie, output = job.driver(1), job.decided(1)
            job.driver(2).publish(replace(output, incarnation=job.context(2).incarnation))
            try:
                receipt = zombie.publish(output)
            except Fenced:
                pass
            else:
                require(receipt.replayed, "a zombie's receipt says that the sink had the epoch", receipt=receipt)
            job.expect(1)
            job.require_shown("a zombie's publish of an epoch that is there shows nothing more")

    def test_a_staged_file_that_is_missing_is_damage(self, subject: SinkSubject) -> None:
        """The other files of the epoch are whole."""
        _damage_is_refused(subject, lambda path: path.unlink())

    def test_a_staged_file_that_is_cut_is_damage(self, subject: SinkSubject) -> None:
        """Its size differs from the committed one."""
        _damage_is_refused(subject, lambda path: path.write_bytes(path.read_bytes()[:-1]))

    def test_a_staged_file_with_another_byte_is_damage(self, subject: SinkSubject) -> None:
        """Its size is right, its SHA-256 is not."""
        _damage_is_refused(subject, _flip_a_byte)

    def test_another_decision_of_a_number_is_refused(self, subject: SinkSubject) -> None:
        """The log lost its newest epoch and assigned the number again: the sink shows other rows than this output."""
        with WritingJob(subject) as job:
            job.driver(1).publish(job.decided(1))
            job.expect(1)
            with refused(PublishConflict, "an epoch that is published for another decision is a conflict"):
                job.driver(2).publish(job.decided(1, 2))
            job.require_shown("nothing of the second decision is shown")

    def test_an_epoch_that_the_log_does_not_know_is_refused(self, subject: SinkSubject) -> None:
        """The sink's marker is neither the previous epoch nor a dropped one."""
        with WritingJob(subject) as job:
            driver = job.driver()
            job.publish(driver, job.decided(1))
            job.publish(driver, job.decided(4))
            job.expect(1, 4)
            with refused(PublishConflict, "a marker that is not `previous` is a conflict"):
                driver.publish(job.decided(6, previous=Epoch(1), acked=Epoch(1)))
            job.require_shown("nothing is shown after a conflict")

    def test_epochs_that_a_restore_left_behind_may_be_there(self, subject: SinkSubject) -> None:
        """`dropped` names them: the sink may have them or not."""
        with WritingJob(subject) as job:
            driver = job.driver(1)
            for epoch in (1, 2):
                job.publish(driver, job.decided(epoch))
            restored = job.decided(4, 2, previous=Epoch(1), acked=Epoch(1), dropped=(Epoch(2), Epoch(3)))
            job.driver(2).publish(restored)
            job.expect(1, 2, 4)
            job.require_shown("what follows a restore is published after an epoch that was dropped")

    def test_an_epoch_of_another_branch_does_not_stand_for_this_one(self, subject: SinkSubject) -> None:
        """The output names it as diverged: it has a higher number, and need not contain these rows."""
        with WritingJob(subject) as job:
            job.publish(job.driver(1), job.decided(1))
            job.driver(1).publish(job.decided(4))  # not acknowledged: the log knows it as diverged only
            with refused(PublishConflict, "a marker of another branch is a conflict"):
                job.driver(2).publish(job.decided(2, 2, diverged=(Epoch(4),), dropped=(Epoch(4),)))
            job.driver(2).publish(job.decided(3, 2, empty=True, diverged=(Epoch(4),), dropped=(Epoch(4),)))
            job.expect(1, 4)
            job.require_shown(
                "of an epoch that diverged from the sink's own nothing is shown, and without rows it is no conflict"
            )

    def test_a_marker_above_every_decided_epoch_is_refused(self, subject: SinkSubject) -> None:
        """`newest` is the highest number ever committed."""
        with WritingJob(subject) as job:
            job.publish(job.driver(1), job.decided(9))
            job.expect(9)
            cut = job.decided(6, 2, previous=Epoch(0), acked=Epoch(0), newest=Epoch(6))
            with refused(PublishConflict, "a marker above `newest` is a conflict"):
                job.driver(2).publish(cut)
            job.require_shown("nothing is shown after a conflict")

    def test_a_target_that_has_lost_its_marker_is_refused(self, subject: SinkSubject) -> None:
        """The log has an acknowledgement of the sink, the target has no marker."""
        with WritingJob(subject) as job:
            with refused(PublishConflict, "a marker that is gone is a conflict"):
                job.driver().publish(job.decided(9, previous=Epoch(8), acked=Epoch(8)))
            job.require_shown("nothing is shown after a conflict")

    def test_a_target_that_lacks_rows_which_it_had_is_refused(self, subject: SinkSubject) -> None:
        """`rows_before`: an older backup of the target has a marker, but of an older epoch."""
        with WritingJob(subject) as job:
            job.publish(job.driver(), job.decided(1))
            with refused(PublishConflict, "a marker below `rows_before` is a conflict"):
                job.driver(2).publish(job.decided(4, 2, previous=Epoch(3), acked=Epoch(3), rows_before=2))
            job.expect(1)
            job.require_shown("nothing is shown after a conflict")

    def test_a_target_in_the_place_of_another_begins_without_a_marker(self, subject: SinkSubject) -> None:
        """`begun_after`: the target replaced another one after that epoch."""
        with WritingJob(subject) as job:
            job.driver().publish(job.decided(9, previous=Epoch(0), acked=Epoch(0), begun_after=Epoch(7)))
            job.expect(9)
            job.require_shown("a target in the place of another one takes the next epoch")

    def test_a_target_in_the_place_of_another_may_have_a_marker_of_the_time_before(self, subject: SinkSubject) -> None:
        """The target was in use earlier, and returns."""
        with WritingJob(subject) as job:
            driver = job.driver()
            driver.publish(job.decided(3))
            driver.publish(job.decided(9, previous=Epoch(0), acked=Epoch(0), begun_after=Epoch(7)))
            job.expect(3, 9)
            job.require_shown("a target that is back takes the next epoch")


class _SendsEarly:
    """Promises of early send: rows sent before their epoch is committed."""

    def test_rows_sent_early_are_shown_with_their_epoch_and_not_before(self, subject: SinkSubject) -> None:
        """Rows are sent batch by batch, then published."""
        with WritingJob(subject) as job:
            driver = _early_of(job)
            for epoch in (1, 2):
                output = job.decided(epoch)
                # Every call of an epoch begins with the files of the call before.
                for count in (1, len(output.files)):
                    driver.send_early(job.early(output, count))
                    job.require_shown("rows sent early are not shown before their epoch is published")
                receipt = job.publish(driver, output)
                job.expect(epoch)
                job.require_shown("rows sent early are shown once, with their epoch")
                due = (subject.rows(epoch).num_rows, False)
                require((receipt.rows, receipt.replayed) == due, "a receipt counts all rows", receipt=receipt)

    def test_rows_sent_early_for_an_epoch_that_is_given_up_are_not_shown(self, subject: SinkSubject) -> None:
        """The aborted epoch's files come with the next number, before others; or they are dropped and never come."""
        with WritingJob(subject) as job:
            driver, given_up = _early_of(job), job.decided(1)
            driver.send_early(job.early(given_up))
            carried = job.decided(2, files=[*given_up.files, *job.staged(2)])
            job.publish(driver, carried)
            job.expect(1, 2)
            job.require_shown("rows of an abandoned epoch are shown once, with the epoch that has them then")
            driver.send_early(job.early(job.decided(3)))
            driver.drop_early_send()
            job.publish(driver, job.decided(4))
            job.expect(4)
            job.require_shown("rows that were dropped are not shown")

    def test_rows_that_a_dead_driver_sent_early_are_not_shown(self, subject: SinkSubject) -> None:
        """Its successor stages other files under the same number. The dead driver's publisher was never closed."""
        with WritingJob(subject) as job:
            _early_of(job).send_early(job.early(job.decided(1)))
            successor = _early_of(job, 2)
            whole = job.decided(1, 2, files=job.staged(3, 2))  # other rows under the number
            successor.send_early(job.early(whole, 1))
            job.publish(successor, whole)
            job.expect(3)
            job.require_shown("rows that a dead driver sent early are not shown")


class _OptionalSinkPromises:
    """Promises that a sink may make in addition; each is tested if the sink makes it."""

    def test_descriptions_are_texts_without_secrets(self, subject: SinkSubject) -> None:
        """Reports show `describe`."""
        require_described(
            subject.make().describe(), subject.secrets, "a description is texts by name, none of them a secret"
        )

    def test_what_a_sink_tells_is_what_it_has_published(self, subject: SinkSubject) -> None:
        """`newest_published`: epoch, incarnation and commit id; None before the first publish, and for another sink."""
        with WritingJob(subject) as job, WritingJob(subject, "other") as other:
            sink, _ = job.made()
            if not isinstance(sink, TellsPublished):
                return skip("the sink does not tell what it has published")
            require(sink.newest_published(job.context()) is None, "a sink that has published nothing tells nothing")
            output = job.decided(4)
            job.publish(job.driver(1), output)
            job.publish(job.driver(2), replace(job.decided(6, 2), decision="f" * 32))
            # The object that has answered before, and a new one.
            for asked in (sink, job.made()[0]):
                told = asked.newest_published(job.context(2)) if isinstance(asked, TellsPublished) else None
                require(told is not None, "a sink that has published tells so")
                if told is not None:
                    # 0: a marker need not say who published
                    right = told.epoch == 6 and told.incarnation in (0, 2)
                    require(right, "the newest epoch is reported", told=told)
                    require(told.is_of("f" * 32), "the marker is of the decision that was published")
                    require(not told.is_of(output.decision), "the marker is of no other decision")
            require(sink.newest_published(other.context()) is None, "the epoch of another sink is not reported")
        return None

    def test_telling_changes_nothing_and_fences_nobody(self, subject: SinkSubject) -> None:
        """A newer incarnation queries the marker while an older one publishes."""
        with WritingJob(subject) as job:
            driver = job.driver(1)
            job.publish(driver, job.decided(1))
            sink, _ = job.made()
            if not isinstance(sink, TellsPublished):
                return skip("the sink does not tell what it has published")
            sink.newest_published(job.context(5))  # newer than every publisher
            try:
                job.publish(driver, job.decided(2))
            except CkptError as error:
                require(False, "reading the newest published epoch fences no driver", raised=error)
            job.expect(1, 2)
            job.require_shown("asking what is published changes nothing")
        return None

    def test_a_whole_result_replaces_the_rows_before(self, subject: SinkSubject) -> None:
        """`EpochOutput.replaces`: published again, by a successor, and without rows."""
        with WritingJob(subject) as job:
            sink, _ = job.made()
            if not (isinstance(sink, ReplacesRows) and sink.replaces_rows):
                return skip("the sink does not replace its rows")
            driver = job.driver(1)
            job.publish(driver, job.decided(1, replaces=True))
            second = job.decided(2, replaces=True)
            driver.publish(second)
            again = job.publish(job.driver(2), replace(second, incarnation=job.context(2).incarnation))
            require(again.replayed, "a receipt says that the sink already had the epoch", receipt=again)
            job.expect(2)
            job.require_shown("a whole result replaces the rows before, once")
            successor = job.driver(3)
            job.publish(successor, job.decided(3, 3))
            job.expect(3)
            job.require_shown("other rows of the sink are appended")
            job.publish(successor, job.decided(4, 3, empty=True, replaces=True))
            job.forget()
            job.require_shown("a whole result without rows leaves none")
        return None

    def test_an_identity_is_the_same_at_every_start(self, subject: SinkSubject) -> None:
        """Known parts stay; all parts are known once an epoch is published."""
        with WritingJob(subject) as job:
            sink = job.made()[0]
            if not isinstance(sink, Identified):
                return skip("the sink has no identity")
            before = texts(sink.identity(subject.session))
            require_described(before, subject.secrets, "an identity is texts by name, none of them a secret")
            job.publish(job.driver(), job.decided(1))
            after = _identity(job, subject)
            known = {name: part for name, part in before.items() if part}
            require(
                known.items() <= after.items(), "a part of an identity that is known stays", before=before, after=after
            )
            require(all(after.values()), "every part is known once something is published", after=after)
            require(_identity(job, subject) == after, "an identity is the same at every start", after=after)
        return None

    def test_another_target_has_another_identity(self, subject: SinkSubject) -> None:
        """A table, topic or folder was re-created under its old name."""
        with WritingJob(subject) as job:
            if subject.renew is None or not isinstance(subject.make(), Identified):
                return skip("the subject has no `renew`, or the sink no identity")
            job.publish(job.driver(), job.decided(1))
            before = _identity(job, subject)
            subject.renew()
            after = _identity(job, subject)
            require(before != after, "another target under the same name has another identity", identity=after)
        return None

    def test_tidying_removes_what_dead_drivers_left_and_nothing_else(self, subject: SinkSubject) -> None:
        """Published rows stay, and so do the files that the living driver has staged."""
        with WritingJob(subject) as job:
            root = job.plan.root
            job.publish(job.driver(1), job.decided(1))
            left, driver = job.staged(2, incarnation=1), job.driver(2)
            mine = job.decided(3, 2)
            if not isinstance(driver, Tidies) or root is None:
                return skip("the sink's staged files are in the store")
            for file in left:  # a sink may keep young files, whose writer may still be at work
                os.utime(_local(root, file), (0, 0))
            removed = driver.tidy()
            require(removed >= len(left), "tidying tells how many files it removed", removed=removed, left=len(left))
            there = [file.path for file in left if _local(root, file).exists()]
            require(not there, "what dead drivers staged is removed", there=there)
            job.publish(driver, mine)
            job.expect(1, 3)
            job.require_shown("what is published or staged by the living stays")
        return None


class SinkConformance(_ExactlyOnce, _SinkRefusals, _SendsEarly, _OptionalSinkPromises):
    """Every promise of a sink. Derive from it and define the fixture `subject`: a new `SinkSubject` for each test."""


def _early_of(job: WritingJob, incarnation: int = 1) -> EarlyPublisher:
    """Return the publisher of a new driver for a sink with early send. Skip the test for other sinks."""
    sink, _ = job.made()
    if not isinstance(sink, SendsEarly) or not sink.sends_early:
        skip("the sink gets no rows before their epoch is committed")
    driver = job.driver(incarnation)
    require(isinstance(driver, EarlyPublisher), "a sink with early sends has publishers that send early")
    return cast("EarlyPublisher", driver)


def _damage_is_refused(subject: SinkSubject, damage: Callable[[Path], object]) -> None:
    """Check that no row of the epoch is shown, that the marker stays, and that the repaired epoch is published."""
    with WritingJob(subject) as job:
        driver = job.driver()
        job.publish(driver, job.decided(1))
        job.expect(1)
        output = job.decided(2)
        # The last file is damaged: a sink that publishes file by file has shown the others by then.
        last = _local(output.root, output.files[-1])
        whole = last.read_bytes()
        damage(last)
        with refused(EpochDamaged, "a staged file that is not what was committed is damage"):
            driver.publish(output)
        job.require_shown("nothing of a damaged epoch is shown")
        last.write_bytes(whole)
        receipt = job.driver(2).publish(output)  # a publisher that failed is replaced
        require(not receipt.replayed, "a damaged epoch is not marked as published")
        job.expect(2)
        job.require_shown("a mended epoch is published")


def _flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def _local(root: str, file: StagedFile) -> Path:
    return Path(unquote(urlsplit(root).path) if "://" in root else root) / file.path


def _identity(job: WritingJob, subject: SinkSubject) -> dict[str, str]:
    sink = job.made()[0]
    return texts(sink.identity(subject.session)) if isinstance(sink, Identified) else {}
