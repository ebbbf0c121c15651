"""The epoch that a run continues from, the latest restorable or the requested one, and the effect on the output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from integration_tests.survival.session import TIMEOUT_S, Place, drained, sums
from spark_ckpt.errors import EpochDamaged, EpochNotFound, PublishConflict, RunFailed

pytestmark = pytest.mark.spark
KEYS = "abcde"


def records(first: int, count: int = 50) -> list[dict[str, object]]:
    return [{"k": KEYS[n % len(KEYS)], "v": n, "n": n} for n in range(first, first + count)]


def expected(*batches: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """Output of one application of these records, by a plain loop."""
    count: Counter[str] = Counter()
    total: Counter[str] = Counter()
    rows: Counter[tuple[Any, ...]] = Counter()
    for row in (row for batch in batches for row in batch):
        key = row["k"]
        count[key] += 1
        total[key] += row["v"]
        rows[(key, row["n"], count[key], total[key])] += 1
    return rows


def found(place: Place) -> Counter[tuple[Any, ...]]:
    return Counter((row["k"], row["n"], row["count"], row["total"]) for row in place.output())


def job(place: Place, **settings: object) -> Any:
    made = place.job(**settings)
    sums(made, place)
    return made


@pytest.mark.long
def test_another_number_of_shuffle_partitions_changes_nothing(place: Place) -> None:
    batches = [records(0), records(50), records(100)]
    for number, (batch, partitions) in enumerate(zip(batches, (2, 5, 1), strict=True)):
        place.write(number, batch)
        drained(job(place, shuffle_partitions=partitions))

    assert found(place) == expected(*batches)


def test_a_restore_continues_the_epochs_state_and_repeats_later_rows(place: Place) -> None:
    one, two, three = records(0), records(50), records(100)
    place.write(1, one)
    first = drained(job(place)).epochs()[-1].epoch
    place.write(2, two)
    drained(job(place))
    assert found(place) == expected(one, two)

    drained(job(place), restore=first)
    repeated = expected(one, two) - expected(one)
    assert found(place) == expected(one, two) + repeated

    place.write(3, three)
    drained(job(place))
    assert found(place) == expected(one, two, three) + repeated


@pytest.mark.long  # in the gate: tests/store/test_restoring.py
def test_a_savepoint_is_restored_by_name(place: Place) -> None:
    one, two = records(0), records(50)
    place.write(1, one)
    run = job(place).start()
    try:
        epoch = run.savepoint("before-deploy", timeout=TIMEOUT_S)
    finally:
        assert run.stop(TIMEOUT_S)
    place.write(2, two)
    drained(job(place))

    again = drained(job(place), restore="before-deploy")

    assert found(place) == expected(one, two) + (expected(one, two) - expected(one))
    assert any(each.base == epoch for each in again.epochs())
    with pytest.raises(EpochNotFound, match="before-deploy"):
        job(place).start(restore="before-deplyo")


# -- damaged stores ---------------------------------------------------------------------------------------------------


def _damage_newest(place: Place) -> int:
    """Delete a state file that only the newest epoch of the store has; return the epoch's number."""
    newest = max((place.store / "state" / "sums").glob("i*-e*-g*.parquet"), key=lambda path: _epoch_of(path.name))
    newest.unlink()
    return _epoch_of(newest.name)


def _epoch_of(name: str) -> int:
    return int(name.split("-e")[1].split("-")[0])


def _until_crash(place: Place, **settings: object) -> None:
    run = job(place, max_failed_epochs=0, **settings).start(availableNow=True)
    with pytest.raises(RunFailed):
        run.awaitTermination(TIMEOUT_S)


@pytest.mark.long  # in the gate: tests/store/test_restoring.py
def test_a_restore_before_a_damaged_unpublished_epoch_repeats_nothing(
    place: Place, crash: Callable[[str], None]
) -> None:
    """The newest epoch is committed and unpublished, and its state is lost: a restore of the epoch before it repeats no row."""
    one, two = records(0), records(50)
    place.write(1, one)
    first = drained(job(place)).epochs()[-1].epoch
    place.write(2, two)
    crash("EPOCH_COMMITTED:raise")
    _until_crash(place)
    crash("")
    _damage_newest(place)
    with pytest.raises(EpochDamaged) as caught:
        job(place).start()
    assert caught.value.context["restore"] == first

    drained(job(place), restore=first)

    assert found(place) == expected(one, two)


@pytest.mark.long  # in the gate: tests/store/test_restoring.py, and integration_tests/runtime/test_damaged_files.py
def test_a_damaged_published_epoch_is_never_skipped_silently(place: Place) -> None:
    """A restore to before it would repeat its output: a person must choose the epoch by number."""
    one, two = records(0), records(50)
    place.write(1, one)
    first = drained(job(place)).epochs()[-1].epoch
    place.write(2, two)
    drained(job(place))
    _damage_newest(place)

    with pytest.raises(EpochDamaged) as caught:
        job(place).start()
    assert "has epoch" in str(caught.value.context["would be repeated"])
    assert found(place) == expected(one, two)

    drained(job(place), restore=first)
    assert found(place) == expected(one, two) + (expected(one, two) - expected(one))


@pytest.mark.long  # in the gate: tests/store/test_restoring.py
def test_a_damaged_epoch_that_may_be_published_is_not_repeated(place: Place, crash: Callable[[str], None]) -> None:
    """Published, but the driver died before the log had the acknowledgement: the sink's marker shows it."""
    one, two = records(0), records(50)
    place.write(1, one)
    drained(job(place))
    place.write(2, two)
    crash("ACKED:raise")
    _until_crash(place, publish_timeout="1 second")
    crash("")
    assert found(place) == expected(one, two)
    _damage_newest(place)

    for _ in range(2):
        with pytest.raises((EpochDamaged, PublishConflict)):
            drained(job(place))

    assert found(place) == expected(one, two)


@pytest.mark.long  # in the gate: tests/store/test_tables_follow_the_log.py
@pytest.mark.parametrize("part", ["state", "edges", "runs"])
def test_tables_that_are_derived_or_lost_lead_to_an_exact_result_or_a_typed_error(place: Place, part: str) -> None:
    """Delta logs of state and outbox, and Spark's runs, are rebuilt from the manifests."""
    one, two = records(0), records(50)
    place.write(1, one)
    drained(job(place))
    _remove_logs(place.store / part)
    place.write(2, two)

    drained(job(place))

    assert found(place) == expected(one, two)


def _remove_logs(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_file() and ("_delta_log" in path.parts or folder.name == "runs"):
            path.unlink()


@pytest.mark.long  # in the gate: tests/store/test_damaged_logs_say_so.py
def test_an_unreadable_control_log_is_a_typed_error(place: Place) -> None:
    place.write(1, records(0))
    drained(job(place))
    for path in (place.store / "epochs").rglob("*.parquet"):
        path.write_bytes(path.read_bytes()[:50])

    with pytest.raises(EpochDamaged):
        job(place).start()
