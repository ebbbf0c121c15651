"""Actions that the product's errors name, done as by an operator: arguments come from the error's own text."""

from __future__ import annotations

import re
from collections.abc import Callable

from integration_tests.campaign.hazards.site import FileJob, command
from integration_tests.campaign.hazards.verdicts import Way
from spark_ckpt.errors import CkptError


def restore(job: FileJob, before: Callable[[CkptError], None] = lambda _: None) -> Way:
    """Start at the epoch that the error names."""

    def follow(error: CkptError, found: re.Match[str]) -> None:
        before(error)
        target = found[1]
        job.drain(restore=int(target) if target.isdigit() else target)

    return Way("start(restore=E)", r"restore=['\"]?([\w-]+)(?![\w'\"-]*, accept)", follow)


def start_again(drain: Callable[[], None], says: str, name: str, before: Callable[[], None] = lambda: None) -> Way:
    """Change the surroundings, then start as usual."""

    def follow(error: CkptError, found: re.Match[str]) -> None:
        before()
        drain()

    return Way(name, says, follow)


def next_start(drain: Callable[[], None]) -> Way:
    """Start again: the error says that the next start publishes by itself."""
    return start_again(drain, r"the next start publishes", "start again")


def filtered(job: FileJob, change: Callable[[], None]) -> list[Way]:
    """Let the program leave the row out; restore to the epoch that the error names, if any."""

    def follow(error: CkptError, found: re.Match[str]) -> None:
        change()
        target = re.search(r"restore=['\"]?([\w-]+)", str(error))
        named = {} if target is None else {"restore": int(target[1]) if target[1].isdigit() else target[1]}
        job.drain(**named)

    return [
        Way(
            "filter the row",
            r"filter|whose rows fit|leave .{0,40}out|without (the|that) row|rejectsTo|dead.letter",
            follow,
        )
    ]


def accept(job: FileJob, setting: str, then: Callable[[], None] = lambda: None) -> Way:
    """Confirm the error's question with the value in its text: `accept_new_sink='out'`."""

    def follow(error: CkptError, found: re.Match[str]) -> None:
        then()
        named = {setting: found[2]}
        if (also := re.search(r"restore=['\"]?(\w+)", f"{found[1]},{found[3]}")) is not None:
            named["restore"] = int(also[1]) if also[1].isdigit() else also[1]
        job.drain(**named)

    return Way(f"start({setting}=)", rf"([^()]*){setting}=\[?['\"]?([\w.-]+)['\"]?\]?([^)]*)", follow)


def repair(job: FileJob, servers: str, topic: str) -> Way:
    """Declare, with the command that the error names, that the topic has the epoch which the log calls published."""

    def follow(error: CkptError, found: re.Match[str]) -> None:
        text = str(error)
        group = re.search(r"[0-9a-f-]{36}\.[\w.-]+\.\d+", text)
        epoch = re.search(r" set (\d+)|follows epoch (\d+)", text)
        assert group is not None and epoch is not None, f"the command lacks a group or an epoch: {text}"
        where = ["--servers", servers, "--topic", topic, "--group", group[0].rstrip(".")]
        words = ["spark_ckpt_kafka.repair", *where, "set", epoch[1] or epoch[2]]
        code, said = command(words)
        if code:
            raise RuntimeError(f"{' '.join(words)} ends with {code}: {said[-500:]}")
        job.drain()

    return Way("spark_ckpt_kafka.repair", r"python -m spark_ckpt_kafka\.repair", follow)
