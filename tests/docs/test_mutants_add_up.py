"""Results of mutation runs add up over runs, and count only for the text that they were made of."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from integration_tests.proof.campaign import Mutant, annotations_of, digest_of, kept, score, targets

MODULE = "spark_ckpt/host/one.py"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    module = tmp_path / MODULE
    module.parent.mkdir(parents=True)
    module.write_text("ONE = 1\n")
    tests = tmp_path / "tests" / "host"
    tests.mkdir(parents=True)
    (tests / "test_one.py").touch()
    (module.parent / "without_tests.py").touch()
    return tmp_path


def tried(root: Path, occurrence: int, outcome: str, verdict: str | None = None) -> Mutant:
    return Mutant(MODULE, digest_of(MODULE, root), "NumberReplacer", occurrence, 1, outcome, verdict)


def written(root: Path, *mutants: Mutant) -> Path:
    results = root / "mutants.jsonl"
    results.write_text("".join(f"{json.dumps(asdict(each))}\n" for each in mutants))
    return results


def test_a_module_is_tried_by_the_tests_of_its_name(root: Path) -> None:
    assert targets(root) == {MODULE: ["tests/host/test_one.py"]}


def test_the_share_is_of_those_that_change_something(root: Path) -> None:
    alive, equal = tried(root, 2, "survived"), tried(root, 3, "survived", "nobody reads it")
    results = written(root, tried(root, 0, "killed"), tried(root, 1, "killed"), alive, equal)

    found = score(kept(results, root))

    assert (found.tried, found.killed, found.equivalent, found.survivors) == (4, 2, 1, (alive,))
    assert found.share == pytest.approx(2 / 3)


def test_a_survivor_that_is_killed_later_is_no_survivor(root: Path) -> None:
    results = written(root, tried(root, 0, "survived"), tried(root, 0, "killed"))

    assert score(kept(results, root)).share == 1


def test_results_of_another_text_do_not_count(root: Path) -> None:
    results = written(root, tried(root, 0, "survived"))
    (root / MODULE).write_text("ONE = 2\n")

    assert kept(results, root) == []


def test_mutants_of_annotations_are_none() -> None:
    source = "def one(a: int | None) -> int | str:\n    b: int | None = 1 | 2\n    return b\n"

    assert sorted(annotations_of(source)) == [((1, 11), (1, 21)), ((1, 26), (1, 35)), ((2, 7), (2, 17))]
