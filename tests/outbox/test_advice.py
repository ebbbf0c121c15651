"""Recovery advice of jobs is translated to actions of an outbox."""

from __future__ import annotations

import errno
import os
import re

import pytest

from spark_ckpt.connector import PublishedEpoch
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import EpochBrief, Manifest
from spark_ckpt.epochs.sinks_ahead import refusal
from spark_ckpt.outbox.advice import of_outbox
from spark_ckpt.storage_errors import outage
from tests.outbox.outbox_kit import batch

BRIEF = EpochBrief.of(
    Manifest(job="orders", epoch=4, incarnation=1, attempt="a", created_ms=0, reason="batch", spark_batch=batch(7)), 0
)
LOG = LogState(job="orders", kind="outbox", latest=4, last=4, by_id={4: BRIEF})


def test_a_restore_names_the_batch_of_its_epoch():
    said = of_outbox("go back with job.start(restore=4)", LOG)
    assert "out.start(writer, restore=4)" in said
    assert "rewind the query to batch 7" in said


@pytest.mark.parametrize(("epoch", "place"), [(0, "its beginning"), (3, "the batch of that epoch")])
def test_a_restore_without_a_known_batch_names_the_place(epoch, place):
    assert f"rewind the query to {place}" in of_outbox(f"job.start(restore={epoch})", LOG)


def test_a_plain_start_has_its_writer():
    assert "out.start(writer);" in of_outbox("continue where the job stopped: job.start(); or wait", LOG)


def test_a_query_that_a_full_disk_ended_is_started_again():
    full = outage("/stores/orders", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert of_outbox(full.hint) == "free space on this file system; then start the query again"


def test_a_setting_of_a_job_is_left_out():
    hint = "job.start(accept_new_sink='gold') (--conf spark.ckpt.accept.new.sink=gold)"
    assert of_outbox(hint) == "out.start(writer, accept_new_sink='gold')"


def test_an_accepted_loss_names_no_job():
    error = refusal({"gold": PublishedEpoch(9, 2, lambda decision: True)}, LOG, "store")
    assert error is not None
    hint = of_outbox(error.hint, LOG)
    assert not re.search(r"\bjobs?\b", hint)
    assert "spark-ckpt accept-loss store --epoch 9 --incarnation 2" in hint
