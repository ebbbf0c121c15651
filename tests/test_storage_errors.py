"""Disk errors of every library are recognized, and no others."""

from __future__ import annotations

import errno
import os

import pytest

from spark_ckpt.errors import (
    StoreDenied,
    StoreFull,
    StoreIoFailed,
    StoreReadOnly,
    StoreUnreachable,
)
from spark_ckpt.storage_errors import outage, refusal_in, refusal_said, typed_errors_at

DELTA_RS = (
    "Generic LocalFileSystem error\n  \x1b[31m\u21b3\x1b[0m Unable to copy\n   No space left on device (os error 28)\n"
)
ARROW = "[Errno 28] Error writing bytes to file. Detail: [errno 28] No space left on device"
JAVA = "org.apache.spark.SparkException: ...\nCaused by: java.io.IOException: No space left on device"


@pytest.mark.parametrize(
    "text", [DELTA_RS, ARROW, JAVA, "java.io.IOException: Disk quota exceeded", "x (os error 122)"]
)
def test_a_full_disk_is_recognized_in_every_librarys_message(text):
    assert refusal_said(text).kind is StoreFull


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EDQUOT, StoreFull), (errno.EROFS, StoreReadOnly), (errno.EACCES, StoreDenied), (errno.EPERM, StoreDenied),
     (errno.EIO, StoreIoFailed), (errno.ESTALE, StoreUnreachable), (errno.EMFILE, StoreUnreachable)],
)  # fmt: skip
def test_every_refusal_has_a_kind_and_a_hint_of_its_own(number, kind):
    error = outage("/data", OSError(number, os.strerror(number)))
    assert type(error) is kind
    assert "credentials" not in error.hint
    assert error.context == {"location": "/data"}


def test_an_unknown_error_is_reported_as_unreachable_in_one_line():
    error = outage("s3://bucket/x", OSError("Generic S3 error\n   0: stack"), path="f")
    assert (type(error), error.what) == (StoreUnreachable, "OSError: Generic S3 error")
    assert "credentials" in error.hint


def test_the_cause_of_an_error_counts_too():
    error = RuntimeError("commit failed")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert refusal_in(error).kind is StoreFull


@pytest.mark.parametrize(
    "text", ["", "Permission denied", "error 28", "[Errno 2] No such file", "offset 28 (os error 2)"]
)
def test_other_texts_say_nothing_about_a_disk(text):
    assert refusal_said(text) is None


def test_typed_errors_and_missing_files_pass_untouched():
    for error in (StoreFull("full"), FileNotFoundError("gone"), ValueError("other")):
        with pytest.raises(type(error)) as caught, typed_errors_at("/data"):
            raise error
        assert caught.value is error
    with pytest.raises(StoreReadOnly), typed_errors_at("/data"):
        raise OSError(errno.EROFS, "Read-only file system")
