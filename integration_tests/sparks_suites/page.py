"""`docs/sparks-tests.md`, from the results."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from integration_tests.sparks_suites.trials import JOBS_SETTINGS, Outcome, Trial
from integration_tests.survival.process import ROOT

RESULTS = Path(__file__).with_name("results.jsonl")
PAGE = ROOT / "docs" / "sparks-tests.md"
MARK = "<!-- figures: python -m integration_tests.sparks_suites page -->"
CAUSES = {
    "^test_stream_await_termination": "`Run.awaitTermination` raises `CKPT_CONFIG_INVALID` for such a text",
    "KeyError: 'name'|stateOperators|'dict' object": "`Run.lastProgress` is a dict with the job's own keys",
    "^test_transform_with_state_chaining_ops": "the job's batch without rows, at the end of each epoch, closes a window earlier",
    "^test_listener_events": "a listener gets the name of the job's query, `<job>/<incarnation>`",
    "_value_state_metadata": "the test reads changes by Spark's batches; a job keeps the state of epochs (`spark-ckpt diff`)",
    "CKPT_SPARK_STATE_CHANGED": "the job refuses this state with an error of its own, `CKPT_SPARK_STATE_CHANGED`",
}
"""Causes of differences that no setting explains, by an expression for the test's name and its error."""


def read(path: Path = RESULTS) -> Iterator[Trial]:
    """Every result of a file."""
    for line in path.read_text().splitlines():
        known = json.loads(line)
        yield Trial(**{**known, "outcome": Outcome(known["outcome"]), "alone": tuple(known["alone"])})


def write(trials: Iterable[Trial], path: Path = RESULTS) -> None:
    """Replace the results of a file."""
    path.write_text("".join(json.dumps(asdict(trial)) + "\n" for trial in trials))


def write_page(results: Path = RESULTS, page: Path = PAGE) -> None:
    """Replace everything after the mark by the results."""
    head = page.read_text().partition(MARK)[0]
    page.write_text(head + MARK + "\n\n" + figures(list(read(results))))


def figures(trials: Sequence[Trial]) -> str:
    """Return the tables of the page."""
    parts = [_counts(trials)]
    for outcome, title, last in (
        (Outcome.DIFFERS, "Tests that differ", "cause"),
        (Outcome.NO_COUNTERPART, "Tests of a part that a job does not have", "part"),
        (Outcome.SKIPPED, "Tests that Spark skips", "reason"),
        (Outcome.FAILS_IN_SPARK, "Tests that plain Spark fails here, too", "error"),
    ):
        found = [trial for trial in trials if trial.outcome is outcome]
        if found:
            parts.append(_table(title, found, last))
    for outcome, title in ((Outcome.PASSED, "Tests that pass"), (Outcome.NO_QUERY, "Tests without a query")):
        parts.append(_names(title, [trial for trial in trials if trial.outcome is outcome]))
    return "\n\n".join(parts) + "\n"


def cause(trial: Trial) -> str:
    """Return the cause of a difference; an empty text if it is unknown."""
    if trial.alone:
        return "plain Spark fails, too, with " + ", ".join(f"`{each}={JOBS_SETTINGS[each]}`" for each in trial.alone)
    text = f"{trial.test} {trial.why}"
    return next((said for pattern, said in CAUSES.items() if re.search(pattern, text, re.DOTALL)), "")


def _counts(trials: Sequence[Trial]) -> str:
    by_module: dict[str, Counter[Outcome]] = defaultdict(Counter)
    for trial in trials:
        by_module[trial.module][trial.outcome] += 1
    shown = [outcome for outcome in Outcome if any(count[outcome] for count in by_module.values())]
    lines = ["| suite | " + " | ".join(shown) + " |", "|---|" + "---:|" * len(shown)]
    for module, count in by_module.items():
        lines.append(f"| `{module}` | " + " | ".join(str(count[outcome]) for outcome in shown) + " |")
    every = Counter(trial.outcome for trial in trials)
    lines.append("| all | " + " | ".join(str(every[outcome]) for outcome in shown) + " |")
    jobs, batches, restarts = (
        sum(getattr(trial, name) for trial in trials) for name in ("queries", "batches", "restarts")
    )
    return "\n".join([f"{len(trials)} tests, {jobs} jobs, {batches} batches, {restarts} restarts.", "", *lines])


def _table(title: str, trials: Sequence[Trial], last: str) -> str:
    lines = [f"## {title}", "", f"| test | suites | {last} |", "|---|---:|---|"]
    rows = Counter((trial.test, _last(trial)) for trial in trials)
    return "\n".join([*lines, *(f"| `{test}` | {times} | {text} |" for (test, text), times in rows.items())])


def _last(trial: Trial) -> str:
    if trial.outcome is Outcome.DIFFERS:
        return cause(trial)
    return trial.why.removeprefix("skipped: ").splitlines()[0].replace("|", "\\|")


def _names(title: str, trials: Sequence[Trial]) -> str:
    by_test = Counter(trial.test for trial in trials)
    shown = (f"`{test}`" + (f" ({times} suites)" if times > 1 else "") for test, times in by_test.items())
    return f"## {title}\n\n" + ",\n".join(shown) + "."
