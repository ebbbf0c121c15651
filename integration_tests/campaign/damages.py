"""Damage to every kind of file of a store: each answer is the same as before, or a typed error, never a different one."""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration_tests.campaign.delta_kills import PROGRAM, Inbox
from integration_tests.campaign.trial import Results
from integration_tests.survival.process import Lives, wait_until
from spark_ckpt.cli.app import exit_code
from spark_ckpt.connector import Json
from spark_ckpt.store.existing import existing_store

OPERATOR, FILES = "sums", 12
LIVES = ("EPOCH_COMMITTED:kill:3", "PUBLISH_COMMITTED:kill:2", "EPOCH_COMMITTED:kill:4")
"""Ends of the damaged job's incarnations: the last one committed an epoch that was not published."""


@dataclass(frozen=True)
class Patient:
    """A job's folder, and a copy of it from before any damage."""

    folder: Path
    whole: Path

    @classmethod
    def made(cls, folder: Path, seed: int) -> Patient:
        """Run a real job for some epochs and incarnations; its newest epoch is committed and unpublished."""
        patient = cls(folder / "job", folder / "whole")
        (patient.folder / "in").mkdir(parents=True)
        inbox = Inbox(patient.folder / "in", random.Random(seed))
        lives = Lives(folder, patient.arguments(), program=PROGRAM)
        for spec in LIVES:
            for _ in range(FILES):
                inbox.write()
            with lives.start(environment={"SPARK_CKPT_FAILPOINT": spec}) as driver:
                driver.wait_for_end()
        store = patient.folder / "store"
        wait_until(
            lambda: '"holds_lease": false' in answer_of(("list", str(store), "--json"))[1], "the last lease expires"
        )
        shutil.rmtree(store / "runs")
        shutil.copytree(patient.folder, patient.whole)
        return patient

    def arguments(self) -> list[str]:
        """Arguments of the job's program."""
        named = {"--input": "in", "--table": "table", "--store": "store", "--local-dir": "."}
        return [word for name, path in named.items() for word in (name, str(self.folder / path))]

    def heal(self) -> None:
        """Restore the folder from the copy."""
        shutil.rmtree(self.folder)
        shutil.copytree(self.whole, self.folder)


def damages(folder: Path, trials: int, seed: int, results: Results) -> None:
    """Damage the store `trials` times, spread evenly over the kinds of files; run every command after each."""
    patient, draw = Patient.made(folder, seed), random.Random(seed)
    questions = list(_questions(patient))
    healthy = {question: answer_of(question) for question in questions}
    assert all(answer[0] == 0 for answer in healthy.values()), healthy
    kinds = kinds_of(patient)
    for _ in range(trials):
        kind = draw.choice(sorted(kinds))
        path, how = draw.choice(kinds[kind]), draw.choice(sorted(HOW))
        HOW[how](path, draw)
        counts = {"same": 0, "told": 0, "untyped": 0, "different": 0}
        wrong = []
        for question in questions:
            verdict, why = judged(healthy[question], question)
            counts[verdict] += 1
            wrong += [f"{path}: {' '.join(question)}: {why}"] if why else []
        results.add(f"{kind}, {how}", counts, "; ".join(wrong)[:2000])
        patient.heal()


def _questions(patient: Patient) -> Iterator[tuple[str, ...]]:
    """Commands that a user runs on the store, with answers as JSON."""
    store = str(patient.folder / "store")
    log_state = existing_store(store).log.state()
    yield ("list", store, "--json")
    yield ("verify", store, "--deep", "--json")
    for brief in (log_state.epochs[0], log_state.epochs[len(log_state.epochs) // 2], log_state.epochs[-1]):
        yield ("show", store, str(brief.epoch), "--json")
        yield ("state", store, OPERATOR, "--epoch", str(brief.epoch), "--limit", "0", "--json")
        yield ("restore", store, str(brief.epoch), "--dry-run", "--json")


def answer_of(question: Sequence[str]) -> tuple[int, str]:
    """Run a command; return its exit code and standard output."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = exit_code(question)
    return code, out.getvalue()


def judged(healthy: tuple[int, str], question: Sequence[str]) -> tuple[str, str]:
    """Compare an answer with that of the intact store; return the result, and the reason if it is wrong."""
    try:
        code, out = answer_of(question)
    except Exception as error:  # noqa: BLE001 - the campaign looks for untyped errors
        return "untyped", f"{type(error).__name__}: {error}"
    if code != 0:
        return "told", ""
    if out == healthy[1]:
        return "same", ""
    before, after = json.loads(healthy[1]), json.loads(out)
    said = {"list": _differ_only_as_listed, "restore": _differ_only_in_uncounted}.get(question[0])
    return ("told", "") if said and said(before, after) else ("different", _first_difference(before, after))


def _differ_only_in_uncounted(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Compare plans of a restore. Input of the newest epochs is not counted if the plan names them as unreadable."""
    named = all(
        each["uncounted"] and each["files"] <= was["files"]
        for was, each in zip(before["inputs"], after["inputs"], strict=True)
    )
    return named and before | {"inputs": after["inputs"]} == after


def _differ_only_as_listed(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Compare lists of epochs. Only an epoch that is listed as damaged may differ: the size of its state is unknown."""
    named = {each["epoch"] for each in after["epochs"] if each.get("damage")}
    unknown = {"state_bytes": None, "damage": None}
    expected = [each | unknown if each["epoch"] in named else each for each in before["epochs"]]
    found = [each | {"damage": None} if each["epoch"] in named else each for each in after["epochs"]]
    return bool(named) and before | {"epochs": expected} == after | {"epochs": found}


def _first_difference(before: Json, after: Json) -> str:
    if isinstance(before, dict) and isinstance(after, dict):
        changed = [name for name in before if before[name] != after.get(name)]
        return f"{changed}: {[before[name] for name in changed]} became {[after.get(name) for name in changed]}"[:600]
    return f"{json.dumps(before)[:300]} became {json.dumps(after)[:300]}"


def kinds_of(patient: Patient) -> Mapping[str, list[Path]]:
    """Files that committed epochs need, by kind."""
    found: dict[str, list[Path]] = defaultdict(list)
    store = patient.folder / "store"
    for path in sorted(path for path in store.rglob("*") if path.is_file()):
        found[_kind_of(path.relative_to(store))].append(path)
    due = existing_store(str(store)).log
    newest = due.manifest(due.state().latest)
    found["staged rows"] = [
        path for output in newest.outputs.values() for file in output.files
        for path in (patient.folder / "table").rglob(Path(file.path).name)
    ]  # fmt: skip
    return found


def _kind_of(path: Path) -> str:
    """The table of a file, and its part of the table."""
    part = "log" if "_delta_log" in path.parts else "data"
    form = path.suffix.removeprefix(".") if not path.name.endswith(".checkpoint.parquet") else "checkpoint"
    return f"{path.parts[0]} {part} {form}"


def _flip(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def _truncate(path: Path, draw: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: draw.randrange(len(content)) if content else 0])


def _empty(path: Path, _: random.Random) -> None:
    path.write_bytes(b"")


def _delete(path: Path, _: random.Random) -> None:
    path.unlink()


def _drop_last_line(path: Path, _: random.Random) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


HOW = {
    "one bit flipped": _flip,
    "truncated": _truncate,
    "emptied": _empty,
    "deleted": _delete,
    "last line dropped": _drop_last_line,
}
