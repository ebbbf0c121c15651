"""Consumed files may be removed, by hand, or by the job when no kept epoch needs them; no row is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spark_ckpt as ckpt
from integration_tests.survival.process import wait_until
from integration_tests.survival.session import TIMEOUT_S, Place, drained
from integration_tests.survival.test_restore import expected, found, records
from spark_ckpt.errors import RunFailed, SourceInvalid

pytestmark = pytest.mark.spark


def job(place: Place, settings: dict[str, Any] | None = None, **source: Any) -> Any:
    made = place.job(**(settings or {}))
    rows = made.source("rows", place.source(**source))
    sums = rows.groupBy("k").agg("each row", "sums", count=ckpt.count(), total=ckpt.sum("v"))
    sums.to(place.sink(), name="out")
    return made


def there(place: Place) -> list[str]:
    return sorted(path.name for path in (place.folder / "in").iterdir())


@pytest.mark.long  # in the gate: tests/files/test_files_planning.py and tests/files/test_files_cleaning.py
def test_files_removed_by_hand_stop_neither_a_running_job_nor_a_restart(place: Place) -> None:
    batches = [records(n * 50) for n in range(4)]
    place.write(0, batches[0])
    run = job(place).start()
    try:
        wait_for_rows(place, 50)
        (place.folder / "in" / "part-0000.json").unlink()
        place.write(1, batches[1])
        wait_for_rows(place, 100)
    finally:
        assert run.stop(TIMEOUT_S)
    (place.folder / "in" / "part-0001.json").unlink()
    place.write(2, batches[2])
    drained(job(place))
    place.write(3, batches[3])
    drained(job(place))

    assert found(place) == expected(*batches)


@pytest.mark.long  # in the gate: tests/files/test_files_ledger.py
def test_a_name_that_sorts_before_consumed_ones_is_read_when_it_comes(place: Place) -> None:
    one, two = records(0), records(50)
    place.write(5, one)
    drained(job(place))
    place.write(1, two)
    drained(job(place))

    assert found(place) == expected(one, two)


@pytest.mark.long  # in the gate: tests/files/test_files_cleaning.py
@pytest.mark.parametrize("mode", ["delete", "archive"])
def test_a_job_removes_files_that_no_kept_epoch_needs_and_can_restore_each_kept_one(place: Place, mode: str) -> None:
    archive = {"sourceArchiveDir": str(place.folder / "archive")} if mode == "archive" else {}
    batches = [records(n * 50) for n in range(24)]
    for number, batch in enumerate(batches):
        place.write(number, batch)
    settings = {"keep_epochs": 2, "interval": "100 milliseconds"}
    drained(job(place, settings, cleanSource=mode, **archive))
    number = 24
    while len(there(place)) > 18:  # each run takes epochs, until the log forgets the first ones
        batches.append(records(number * 50))
        place.write(number, batches[-1])
        drained(job(place, settings, cleanSource=mode, **archive))
        number += 1
        assert number < 60, "nothing is cleaned"
    wait_until(lambda: "ckpt-clean-source" not in {each.name for each in threading.enumerate()}, "cleaning is done")
    whole = found(place)
    assert whole == expected(*batches)
    left = set(there(place))
    if mode == "archive":
        moved = {path.name for path in (place.folder / "archive").rglob("*.json")}
        assert moved | left == {f"part-{n:04}.json" for n in range(number)}
        assert not moved & left

    place.write(number, records(number * 50))
    kept = drained(job(place, settings, cleanSource=mode, **archive)).epochs()
    batches.append(records(number * 50))
    whole = found(place)
    drained(job(place, settings, cleanSource=mode, **archive), restore=min(each.epoch for each in kept))

    again = found(place) - whole
    assert again  # rows after the oldest kept epoch, once more
    assert not again - expected(*batches)
    assert whole == expected(*batches)


@pytest.mark.long  # in the gate: tests/files/test_files_cleaning.py
def test_files_of_an_epoch_that_is_not_published_stay(place: Place, crash: Callable[[str], None]) -> None:
    one, two = records(0), records(50)
    settings = {"keep_epochs": 1, "max_failed_epochs": 0}
    place.write(0, one)
    drained(job(place, settings, cleanSource="delete"))
    place.write(1, two)
    crash("EPOCH_COMMITTED:raise")
    run = job(place, settings, cleanSource="delete").start(availableNow=True)
    with pytest.raises(RunFailed):
        run.awaitTermination(TIMEOUT_S)
    crash("")
    assert "part-0001.json" in there(place)

    drained(job(place, settings, cleanSource="delete"))
    assert found(place) == expected(one, two)


@pytest.mark.long  # in the gate: tests/files/test_files_cleaning.py
def test_a_restore_that_needs_removed_files_is_refused_and_changes_nothing(place: Place) -> None:
    one, two, three = records(0), records(50), records(100)
    place.write(1, one)
    first = drained(job(place)).epochs()[-1].epoch
    place.write(2, two)
    drained(job(place))
    (place.folder / "in" / "part-0002.json").unlink()

    for target in (first, 0):
        with pytest.raises(SourceInvalid, match=r"would read again are gone") as caught:
            job(place).start(restore=target)
        assert "part-0002.json" in str(caught.value)
    place.write(3, three)
    drained(job(place))

    assert found(place) == expected(one, two, three)


def wait_for_rows(place: Place, count: int) -> None:
    def shown() -> bool:
        return Path(place.table, "_delta_log").exists() and len(place.output()) >= count

    wait_until(shown, f"{count} rows in the table", TIMEOUT_S)
