"""Results of mutation runs add up over runs, and count only for the text that was mutated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from integration_tests.proof.mutants import Mutant, Results, added, digest_of, interval, read, score, write
from integration_tests.proof.mutation import drawn, fastest
from integration_tests.survival.process import ROOT

MODULE = "spark_ckpt.coordination.one"
SOURCE = "class One:\n    def first(self):\n        return 1\n\n\ndef second():\n    return 2\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    module = tmp_path / f"{MODULE.replace('.', '/')}.py"
    module.parent.mkdir(parents=True)
    module.write_text(SOURCE)
    return tmp_path


def tried(root: Path, number: int, outcome: str, verdict: str | None = None) -> Mutant:
    name = f"{MODULE}.xǁOneǁfirst__mutmut_{number}"
    return Mutant(name, digest_of(name, root) or "", outcome, "-1\n+2", verdict, "because" if verdict else "")


def test_the_share_is_of_mutants_that_change_something(root: Path) -> None:
    outcomes = [
        ("killed", None),
        ("killed", None),
        ("survived", "equivalent"),
        ("survived", "text"),
        ("timeout", None),
    ]

    found = score(tried(root, number, *outcome) for number, outcome in enumerate(outcomes))

    assert (found.tried, found.dead) == (5, 2)
    assert found.verdicts == {"equivalent": 1, "text": 1, "hole": 0, "open": 1}
    assert found.share()[0] == 2 / 4
    assert found.share("text")[0] == pytest.approx(2 / 3)


def test_a_mutant_killed_by_a_new_test_did_not_count_before(root: Path) -> None:
    found = score([tried(root, 0, "killed", "hole"), tried(root, 1, "killed")])

    assert (found.share(first=True)[0], found.share()[0]) == (1 / 2, 1)


def test_the_interval_is_wilsons() -> None:
    assert interval(9, 10) == pytest.approx((0.9, 0.5958, 0.9821), abs=1e-4)


def test_a_survivor_that_is_killed_later_is_a_hole_that_was_closed(root: Path) -> None:
    (found,) = added([tried(root, 0, "survived")], [tried(root, 0, "killed")])

    assert (found.outcome, found.verdict, found.change) == ("killed", "hole", "-1\n+2")


def test_a_verdict_stays_as_long_as_its_mutant_survives(root: Path) -> None:
    (found,) = added([tried(root, 0, "survived", "equivalent")], [tried(root, 0, "survived")])

    assert (found.verdict, found.why) == ("equivalent", "because")


def test_kept_results_can_be_read(root: Path) -> None:
    known = Results({"coordination": 7}, {"1": 2}, (tried(root, 0, "survived", "text"), tried(root, 1, "killed")))
    write(known, root / "mutants.json")

    assert read(root / "mutants.json") == known


def test_results_of_another_text_of_the_function_do_not_count(root: Path) -> None:
    known = Results({}, {}, (tried(root, 0, "survived"),))
    module = root / f"{MODULE.replace('.', '/')}.py"

    module.write_text(SOURCE.replace("return 2", "return 3"))
    assert known.kept(root) == list(known.tried)
    module.write_text(SOURCE.replace("return 1", "return 3"))
    assert known.kept(root) == []


def test_a_sample_has_its_share_of_every_package_and_a_larger_one_holds_it() -> None:
    packages = ("coordination", "store")
    names = [f"spark_ckpt.{package}.m.x_f__mutmut_{n}" for package in packages for n in range(40)]

    small, large = drawn(names, 10, 1), drawn(names, 20, 1)

    assert [sum(f".{package}." in name for name in small) for package in packages] == [5, 5]
    assert set(small) < set(large)
    assert set(small) != set(drawn(names, 10, 2))


def test_a_mutant_is_tried_by_the_fastest_tests_within_a_time_and_by_at_least_one() -> None:
    takes = {"slow": 9.0, "quick": 0.5, **{f"middling {number}": 1.0 for number in range(20)}}

    assert fastest(takes, takes, 10.0) == ["quick", *sorted(takes)[:9]]
    assert fastest(takes, takes, 100.0)[-1] == "slow"
    assert fastest(["slow"], takes, 10.0) == ["slow"]


def test_every_survivor_has_a_verdict_and_every_hole_names_an_existing_test() -> None:
    kept = read().kept()
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))

    assert [each.name for each in kept if not each.dead and not (each.verdict and each.why)] == []
    assert [each.name for each in kept if each.verdict == "hole" and not each.dead] == []
    assert [each.why for each in kept if each.verdict == "hole" and not re.search(rf"def {each.why}\(", tests)] == []
