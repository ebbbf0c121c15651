"""A traceback shows the user's own lines, for every caller and every depth."""

from __future__ import annotations

import json
from collections.abc import Callable

import pandas as pd
import pytest

from spark_ckpt.tasks.failures import user_function_failed
from spark_ckpt.tasks.user_frames import user_part, user_traceback

SITE = "/opt/venv/lib/python3.11/site-packages"
WORKER = f'''Traceback (most recent call last):
  File "{SITE}/pyspark/python/lib/pyspark.zip/pyspark/worker.py", line 3622, in main
    process()
  File "{SITE}/spark_ckpt/tasks/operators/keyed_function.py", line 166, in _call
    for item in _iterable(func(key, frames(i), state)):
  File "/home/ann/job.py", line 12, in add_up
    return rate(frame)
           ^^^^^^^^^^^
  File "/home/ann/rates.py", line 3, in rate
    return frame["nope"]
  File "{SITE}/pandas/core/frame.py", line 4102, in __getitem__
    indexer = self.columns.get_loc(key)
  File "{SITE}/pandas/core/indexes/base.py", line 3812, in get_loc
    raise KeyError(key) from err
KeyError: 'nope'
'''


def raised_by(function: Callable[[], object]) -> Exception:
    try:
        function()
    except Exception as error:  # noqa: BLE001 - to look at it
        return error
    raise AssertionError("nothing was raised")


def test_only_the_users_lines_and_the_one_that_raised_are_shown() -> None:
    assert user_part(WORKER).split("\n") == [
        'File "/home/ann/job.py", line 12, in add_up',
        "  return rate(frame)",
        "         ^^^^^^^^^^^",
        'File "/home/ann/rates.py", line 3, in rate',
        '  return frame["nope"]',
        f'File "{SITE}/pandas/core/indexes/base.py", line 3812, in get_loc',
        "  raise KeyError(key) from err",
        "KeyError: 'nope'",
    ]


@pytest.mark.parametrize("folder", ["pyspark", "spark_ckpt", "python"])
def test_a_folder_of_the_users_with_a_known_name_is_still_theirs(folder: str) -> None:
    text = f'Traceback (most recent call last):\n  File "/home/ann/{folder}/job.py", line 1, in f\n    1 / 0\nZeroDivisionError: x'
    assert f"/home/ann/{folder}/job.py" in user_part(text)


@pytest.mark.parametrize(
    "path",
    [
        "/opt/spark/python/pyspark/worker.py",
        "/opt/spark/python/lib/pyspark.zip/pyspark/worker.py",
        "/opt/spark/python/lib/py4j-0.10.9.9-src.zip/py4j/protocol.py",
        f"{SITE}/spark_ckpt_kafka/publisher.py",
        f"{SITE}/pyspark/sql/conversion.py",
    ],
)
def test_without_a_line_of_the_users_there_is_nothing_to_show(path: str) -> None:
    inside = (
        f'  File "{path}", line 1, in f\n    g()\n  File "pyarrow/array.pxi", line 1131, in pyarrow.lib.from_pandas\n'
    )
    assert user_part(f"Traceback (most recent call last):\n{inside}ValueError: no") == ""


def test_a_function_of_an_installed_package_is_shown_where_it_raised() -> None:
    shown = user_traceback(raised_by(lambda: json.loads("{")))
    assert __file__ in shown
    assert "json/decoder.py" in shown
    assert "json/__init__.py" not in shown
    bare = f'Traceback (most recent call last):\n  File "{SITE}/lib/a.py", line 1, in f\n    g()\nValueError: no'
    assert "lib/a.py" in user_part(bare)


def test_the_cause_of_an_error_is_shown_if_it_is_the_users() -> None:
    def chained() -> None:
        try:
            pd.DataFrame()["absent"]
        except KeyError as error:
            raise ValueError("no rate") from error

    lines = user_traceback(raised_by(chained)).split("\n")
    assert "KeyError: 'absent'" in lines
    assert lines[-1] == "ValueError: no rate"
    assert sum("direct cause" in line for line in lines) == 1
    assert not any("hashtable" in line for line in lines), "causes inside of the package are not the user's"


def test_the_text_is_bounded_for_any_recursion_and_message() -> None:
    def even(n: int) -> int:
        return odd(n + 1)

    def odd(n: int) -> int:
        return even(n + 1)

    deep = user_traceback(raised_by(lambda: even(0)))
    assert len(deep.split("\n")) < 50
    assert deep.split("\n")[-1].startswith("RecursionError")
    assert len(user_traceback(raised_by(lambda: int("x" * 10_000)))) < 2000


def test_the_lines_are_in_the_message_below_their_name() -> None:
    text = str(user_function_failed("totals", ("a",), raised_by(lambda: 1 / 0)))
    assert f'\n  traceback:\n    File "{__file__}", line ' in text
    assert "\n    ZeroDivisionError: division by zero\n  next: fix the function" in text
