"""`docs/reliability.md`: the trials and their results, from the lines of all campaigns."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from integration_tests.campaign.trial import RESULTS, Trial, read
from integration_tests.survival.process import ROOT

PAGE = ROOT / "docs" / "reliability.md"
MARK = "<!-- figures: python -m integration_tests.campaign page -->"
WORDS = {
    "kafka": "Kafka to Kafka: kill -9",
    "delta": "files to Delta, append and MERGE, with another writer: kill -9",
    "sparks": "operators of Spark inside of a job, on both of its state stores: kill -9",
    "sparks-zombies": "a driver with operators of Spark frozen, replaced, and woken",
    "sparks-damages": "a file of the state of Spark's operators damaged, then verified and started",
    "programs": "a history of drawn programs of Spark's operators, failed and restored: compared with plain Spark",
    "lines": "two programs joined by an edge, named lines judged: kill -9",
    "topics": "two programs joined by a topic of Kafka: kill -9",
    "line-restores": "two such programs, restored to a line while they run, by a command that finishes or is killed",
    "stages": "one of several stages of a program: kill -9, by protocol, graph, stage and point of the kill",
    "zombies": "a driver frozen, replaced, and woken",
    "brokers": "the Kafka broker killed and started again",
    "leaders": "one of three Kafka brokers killed or paused",
    "damages": "a file of the store damaged, every command run",
    "starts": "a file of the store damaged, the job started",
    "disks": "the store's disk full for up to 12 s",
    "soak": "a long run, an epoch each second",
    "failovers": "the leading driver killed, a standby takes over",
    "silences": "the leading driver killed, a standby on another host takes over after the lease expires",
    "handovers": "the leading driver hands over to its standby",
    "paused": "the leading driver frozen past the takeover, and woken",
    "unfenced": "a driver with the planted bug that it does not check the lease, frozen and woken: found",
    "outbox": "a plain query with an outbox, files to Kafka and Delta: kill -9",
    "outbox-zombies": "drivers of such a query frozen, replaced, and woken",
    "outbox-checkpoints": "the checkpoint of such a query deleted, copied, edited or rewound by hand",
    "outbox-connect": "a plain query with an outbox through Spark Connect: kill -9",
    "rewinds": "plain queries rewound, and the rewind undone, by commands that are killed",
    "tables-behind": "a sink has fewer epochs than the store",
    "tables-changed": "the sink's table or topic, or the source, is changed while the job runs",
    "poisoned-records": "rows that a topic rejects",
    "odd-settings": "session settings that change types, names or layouts",
    "odd-paths": "odd names of folders, columns and files",
    "future-times": "times far from now, in files and in values",
}
COUNTED = {
    "lost": "lost",
    "duplicated": "duplicated",
    "wrong": "wrong",
    "reordered": "reordered",
    "foreign lost": "of the other writer lost",
    "different": "silently different answers",
    "untyped": "untyped errors",
    "advice fails": "advice that does not work",
}
ENDED = {"right": "right", "recovered": "refused, right after the advice"}
"""Ends of a trial that keep the promise, in campaigns whose errors' advice is followed."""


def write_page(results: Path = RESULTS, page: Path = PAGE) -> None:
    """Replace the page after the mark by the figures."""
    head = page.read_text().partition(MARK)[0]
    page.write_text(head + MARK + "\n\n" + figures(list(read(results))))


def figures(trials: Sequence[Trial]) -> str:
    """The tables of the page."""
    by_campaign: dict[str, list[Trial]] = defaultdict(list)
    for trial in trials:
        by_campaign[trial.campaign].append(trial)
    known = [name for name in WORDS if name in by_campaign]
    return "\n\n".join([_summary(known, by_campaign), *(_details(name, by_campaign[name]) for name in known)]) + "\n"


def _summary(known: Iterable[str], by_campaign: dict[str, list[Trial]]) -> str:
    heads = ["campaign", "trials", "broken promises", *COUNTED.values(), "commits"]
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 2) + "---|"]
    for name in known:
        trials = by_campaign[name]
        total = _totals(trials)
        commits = ", ".join(sorted({trial.commit for trial in trials}))
        done = sum(trial.times for trial in trials if "compared" not in trial.kind)
        broken = sum(bool(trial.why) for trial in trials)
        lines.append(
            "| " + " | ".join(map(str, [WORDS[name], done, broken, *(total[each] for each in COUNTED), commits])) + " |"
        )
    return "\n".join(lines)


def _totals(trials: Iterable[Trial]) -> Counter[str]:
    total: Counter[str] = Counter()
    for trial in trials:
        for name in COUNTED:
            total[name] += round(trial.figures.get(name, 0))
    return total


def _details(name: str, trials: Sequence[Trial]) -> str:
    lines = [f"## {WORDS[name]}", ""]
    if name == "soak":
        return "\n".join(
            [*lines, "| | |", "|---|---:|", *(_soaked(trial) for trial in trials if trial.kind == "long run")]
        )
    ends = [end for end in ENDED if any(end in trial.figures for trial in trials)]
    heads = ["times", *(ENDED[end] for end in ends), "broken"]
    lines += ["| action | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    broken = Counter(t.kind for t in trials if t.why)
    times, ended = Counter[str](), {end: Counter[str]() for end in ends}
    for trial in trials:
        times[trial.kind] += trial.times
        for end in ends:
            ended[end][trial.kind] += round(trial.figures.get(end, 0))
    for kind, number in sorted(times.items()):
        counts = [number, *(ended[end][kind] for end in ends), broken[kind]]
        lines.append(f"| {kind} | " + " | ".join(map(str, counts)) + " |")
    lines += _seconds(trials)
    records = sum(round(trial.figures.get("records", 0)) for trial in trials)
    return "\n".join([*lines, "", f"{records:,} records compared."] if records else lines)


def _seconds(trials: Sequence[Trial]) -> list[str]:
    """Measurements in seconds, by kind. They include other work on the machine."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for trial in trials:
        for name, value in trial.figures.items():
            if name.endswith(" s"):
                found[name, trial.kind].append(value)
    if not found:
        return []
    lines = ["", "| seconds | trials | median | 90 % within | longest |", "|---|---:|---:|---:|---:|"]
    for (name, kind), values in sorted(found.items()):
        values.sort()
        shares = (values[len(values) // 2], values[math.ceil(0.9 * len(values)) - 1], values[-1])
        row = " | ".join(f"{share:.1f}" for share in shares)
        lines.append(f"| {name.removesuffix(' s')}: {kind} | {len(values)} | {row} |")
    return lines


def _soaked(trial: Trial) -> str:
    return "\n".join(f"| {name} | {value:g} |" for name, value in trial.figures.items())
