"""The ledger of consumed files: small in the cursor, exact for any cuts and restores."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_ckpt_files.ledger import Consumed, FileLedger, decoded, encoded
from spark_ckpt_files.listing import DataFile

from spark_ckpt.errors import FormatUnknown, SourceInvalid
from spark_ckpt.testing.sources import MemoryFolder


def batch(first: int, count: int = 1) -> list[DataFile]:
    return [DataFile(f"part-{n:05}", n, 1000 + n) for n in range(first, first + count)]


def names(files: Iterable[str]) -> list[int]:
    return sorted(int(name.removeprefix("part-")) for name in files)


def history(ledger: FileLedger, sizes: Iterable[int]) -> list[Consumed]:
    cuts = [Consumed()]
    for size in sizes:
        cuts.append(ledger.after(cuts[-1], batch(cuts[-1].count, size)))
    return cuts


def test_retention_may_read_the_ledger_while_the_job_writes_it() -> None:
    """They run on two threads, and the interpreter may switch between them at each comparison of names."""
    folder = MemoryFolder()
    begun, *others = (history(FileLedger(folder), [count])[-1] for count in range(20, 30))
    ledger, kept = FileLedger(folder), iter(others)

    class Segment(str):
        """A name whose comparison lets retention run."""

        def __eq__(self, other: object) -> bool:
            ledger.files(next(kept))
            return str(self) == other

        __hash__ = str.__hash__

    after = ledger.after(replace(begun, segments=tuple(map(Segment, begun.segments))), batch(20))

    assert names(ledger.files(after)) == list(range(21))


@given(st.lists(st.integers(1, 40), max_size=30))
def test_a_later_incarnation_finds_exactly_the_files_of_every_cut(sizes: list[int]) -> None:
    folder = MemoryFolder()
    for cut in history(FileLedger(folder), sizes):
        read = Consumed.of(json.loads(json.dumps(cut.cursor("dir"))))

        assert read == cut
        assert names(FileLedger(folder).files(read)) == list(range(cut.count))


def test_a_cursor_stays_small() -> None:
    ledger = FileLedger(MemoryFolder())
    cuts = history(ledger, [7] * 400)

    assert max(len(json.dumps(cut.cursor("dir"))) for cut in cuts) < 1000


def test_without_a_ledger_the_cursor_holds_the_files() -> None:
    cut = history(FileLedger(), [2, 1])[-1]

    assert names(FileLedger().files(Consumed.of(json.loads(json.dumps(cut.cursor("dir")))))) == [0, 1, 2]


def test_a_branch_omits_files_after_its_base() -> None:
    folder = MemoryFolder()
    cuts = history(FileLedger(folder), [2, 2, 2])

    branch = FileLedger(folder).after(cuts[1], batch(100, 3))

    assert names(FileLedger(folder).files(branch)) == [0, 1, 100, 101, 102]
    assert names(FileLedger(folder).files(cuts[3])) == list(range(6))


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:9] + b"\1" + data[10:], lambda _: b""])
def test_a_damaged_segment_is_never_an_answer(damage) -> None:
    folder = MemoryFolder()
    cut = history(FileLedger(folder), [5])[-1]
    (name,) = folder.content
    folder.content[name] = damage(folder.content[name])

    with pytest.raises(SourceInvalid, match=f"{name} is not what was written"):
        FileLedger(folder).files(cut)


def test_a_missing_segment_is_named() -> None:
    folder = MemoryFolder()
    cut = history(FileLedger(folder), [5])[-1]
    folder.content.clear()

    with pytest.raises(SourceInvalid, match="is missing"):
        FileLedger(folder).files(cut)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../b"])
def test_a_name_that_leads_out_of_the_directory_is_refused(name: str) -> None:
    cursor = dict(FileLedger().after(Consumed(), [DataFile(name, 1)]).cursor("dir"))
    with pytest.raises(SourceInvalid, match="not a file of the directory"):
        Consumed.of(cursor)


@pytest.mark.parametrize("segment", ["../epochs/x", "000000000001-zz.arrow"])
def test_an_invalid_segment_is_refused(segment: str) -> None:
    with pytest.raises(SourceInvalid, match="not a ledger's segment"):
        Consumed.of({"format": 2, "count": 1, "bytes": 1, "newest_ms": 1, "segments": [segment]})


@pytest.mark.parametrize("written", [1, 9], ids=["older", "newer"])
def test_a_cursor_of_another_format_is_refused(written: int) -> None:
    with pytest.raises(FormatUnknown) as caught:
        Consumed.of({"format": written})
    assert caught.value.context == {"found": written, "reads": 2}


# -- deletions --------------------------------------------------------------------------------------------------------


def test_segments_that_no_kept_cursor_names_are_deleted_and_the_others_stay_intact() -> None:
    folder = MemoryFolder()
    cuts = history(FileLedger(folder), [3, 1, 1, 1, 5, 1])

    removed = FileLedger(folder).sweep(cuts[4:])

    assert removed > 0
    for cut in cuts[4:]:
        assert names(FileLedger(folder).files(cut)) == list(range(cut.count))


def test_uncommitted_segments_of_another_incarnation_stay() -> None:
    """A driver that was fenced, and does not know it yet, deletes files."""
    folder = MemoryFolder()
    base = history(FileLedger(folder), [3])[-1]
    undecided = FileLedger(folder).after(base, batch(3))

    FileLedger(folder).sweep([base])

    assert names(FileLedger(folder).files(undecided)) == [0, 1, 2, 3]


def test_names_may_leave_the_ledger_only_when_all_segments_are_joined() -> None:
    folder = MemoryFolder()
    ledger = FileLedger(folder)
    first = ledger.after(Consumed(), batch(0, 4))

    second = ledger.after(first, batch(4, 1), keep=lambda files, _: [])
    third = ledger.after(second, batch(5, 5), keep=lambda files, _: files[-2:])

    assert names(ledger.files(second)) == [0, 1, 2, 3, 4]
    assert names(ledger.files(third)) == [8, 9]
    assert third.count == 10


@given(st.lists(st.tuples(st.text(max_size=5), st.integers(0, 2**60), st.integers(0, 2**60), st.booleans())))
def test_lists_of_files_survive_the_way_to_another_process(rows) -> None:
    files = [DataFile(*row) for row in rows]

    found = decoded(encoded(files))

    assert [(f.name, f.size, f.modified_ms, f.read) for f in found] == rows


def test_the_ledger_of_a_store_folder(tmp_path: Path) -> None:
    from spark_ckpt.store.location import Location

    location = Location(str(tmp_path)).child("sources", "in")
    cut = FileLedger(location).after(Consumed(), batch(0, 3))
    later = FileLedger(location).after(cut, batch(3, 9))

    assert names(FileLedger(location).files(later)) == list(range(12))
    assert FileLedger(location).sweep([later]) == 1
