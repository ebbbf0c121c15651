"""The page of ported programs has all existing programs, with their current lines and the results of their current code."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from integration_tests.ported import layers, word_counts
from integration_tests.ported.menu import PROGRAMS
from integration_tests.ported.page import MARK, PAGE, read, tables
from integration_tests.ported.pairs import PairDiffers, judge
from integration_tests.ported.program import Program, body

TOTALS = PROGRAMS["totals by MERGE"]


def test_the_page_has_the_tables_of_the_present_programs() -> None:
    shown = PAGE.read_text().partition(MARK)[2].strip()
    assert shown == tables(read()).strip(), "python -m integration_tests.ported PROGRAM runs it and writes the page"


def test_each_program_has_run_with_its_current_code() -> None:
    measured = read()
    old = [name for name, ported in PROGRAMS.items() if name not in measured or measured[name].code != ported.digest]
    assert old == [], "python -m integration_tests.ported PROGRAM..."


def test_a_changed_program_counts_as_not_run() -> None:
    changed = replace(TOTALS, job=layers.job_two)
    assert changed.digest != TOTALS.digest


def test_fifteen_programs_each_follow_a_public_one() -> None:
    assert len(PROGRAMS) == 15
    assert all(": " in each.original for each in PROGRAMS.values())


def test_lines_that_differ_are_counted() -> None:
    def plain(spark, inputs, outputs, state):
        """A docstring counts not."""
        rows = spark.read(inputs)
        # nor does a comment
        many = rows.filter("v > 1")
        many.write(outputs)

    def job(spark, inputs, outputs, state):
        rows = spark.source(inputs)

        def run():
            many = rows.filter("v > 1")
            many.to(outputs)
            return many

        return run()

    plain_form: Program = plain
    job_form: Program = job
    pair = replace(TOTALS, plain=plain_form, job=job_form, shared=(word_counts.line,))
    changes = pair.changes
    assert body(plain) == ["rows = spark.read(inputs)", 'many = rows.filter("v > 1")', "many.write(outputs)"]
    assert (changes.lines, changes.removed, changes.added) == (3 + 2, 2, 5)


@pytest.mark.parametrize(
    ("found", "later", "verdict"),
    [
        ("a b", "a b", "lost 1, late 0, too many 0"),
        ("a b", "a b b", "lost 0, late 1, too many 0"),
        ("a b b b", "a b b b", "lost 0, late 0, too many 1"),
        ("a b c", "a b c", "lost 1, late 0, too many 1"),
        ("b", "b a c", "lost 1, late 1, too many 0"),
    ],
    ids=["a lost row", "a late row", "a row too often", "another row", "a late row and a lost one"],
)
def test_the_comparison_sees(found: str, later: str, verdict: str) -> None:
    wanted = Counter(["a", "b", "b"])
    judge(wanted, Counter(["b", "a", "b"]), "table", lambda: pytest.fail("equal tables need no further run"))
    with pytest.raises(PairDiffers, match=verdict):
        judge(wanted, Counter(found.split()), "table", lambda: Counter(later.split()))
