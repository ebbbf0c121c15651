"""The commands of `spark-ckpt`: the product's own, and those that other installed packages register.

A package registers each command with an entry point in the group `spark_ckpt.verbs`: the command's name and a `Verb`.
So the lab, the rewind of plain queries and the demo add their commands; the product imports none of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

import typer

from spark_ckpt.errors import EnvironmentUnfit

GROUP = "spark_ckpt.verbs"


@dataclass(frozen=True, slots=True)
class Verb:
    """A command or a group of commands: `member` of `module`."""

    name: str
    module: str
    member: str
    short_help: str = ""

    def add_to(self, app: typer.Typer) -> None:
        """Load the command. Other modules stay unloaded: loading all of them takes longer than most commands run."""
        member = getattr(import_module(self.module), self.member)
        if isinstance(member, typer.Typer):
            app.add_typer(member, name=self.name)
        else:
            app.command(self.name, short_help=self.short_help)(member)


OWN = (
    Verb("list", "spark_ckpt.cli.list", "list_epochs", "The epochs that can be restored."),
    Verb("show", "spark_ckpt.cli.show", "show", "What one epoch consists of."),
    Verb("state", "spark_ckpt.cli.state", "state", "An operator's state at an epoch."),
    Verb("diff", "spark_ckpt.cli.diff", "diff", "What changed in the state between epochs."),
    Verb("savepoint", "spark_ckpt.cli.savepoint", "app"),
    Verb("restore", "spark_ckpt.cli.restore", "restore", "The effects of restoring an epoch."),
    Verb("line", "spark_ckpt.cli.line", "line", "Consistent cuts over the stores of several programs."),
    Verb("rescale", "spark_ckpt.cli.rescale", "rescale", "Another number of key groups for an operator."),
    Verb("bootstrap", "spark_ckpt.cli.bootstrap", "bootstrap", "State for an operator that is new in a job."),
    Verb(
        "accept-loss",
        "spark_ckpt.cli.accept_loss",
        "accept_loss",
        "Continue although the store has lost epochs that sinks have.",
    ),
    Verb("ui", "spark_ckpt.cli.ui", "ui", "Jobs in a browser: epochs, graph, incarnations, state."),
    Verb("report", "spark_ckpt.cli.report", "report", "The same as one HTML file."),
    Verb("lease", "spark_ckpt.cli.lease", "lease", "The driver of a job, and its standbys."),
    Verb("handover", "spark_ckpt.cli.handover", "handover", "The driver hands the job over to a standby."),
    Verb("verify", "spark_ckpt.cli.verify", "verify", "Check the files of every epoch."),
    Verb("explain", "spark_ckpt.cli.explain", "explain", "What an error means, and what ends it."),
    Verb("doctor", "spark_ckpt.cli.doctor", "doctor", "Whether everything a job needs is here."),
    Verb("connectors", "spark_ckpt.cli.connectors", "connectors", "Sources and sinks that are installed."),
    Verb("jars", "spark_ckpt.cli.jars", "jars", "A connector's jars, for spark-submit."),
    Verb("prepare", "spark_ckpt.cli.prepare", "prepare", "Make later starts on this machine fast."),
)


def verbs() -> tuple[Verb, ...]:
    """Return every installed command, the product's own first. Raises `EnvironmentUnfit` for one that cannot be
    loaded.
    """
    return (*OWN, *(_registered(entry) for entry in sorted(entry_points(group=GROUP))))


def find_verbs(name: str | None) -> tuple[Verb, ...]:
    """Return the command `name` alone; every command if none has this name. Raises `EnvironmentUnfit`."""
    own = [verb for verb in OWN if verb.name == name]
    named = own or [_registered(entry) for entry in entry_points(group=GROUP, name=name or "")]
    return tuple(named) or verbs()


def _registered(entry: EntryPoint) -> Verb:
    try:
        verb = entry.load()
    except Exception as error:  # another package's code runs here
        raise _unusable(entry, f"it cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(verb, Verb) or verb.name != entry.name:
        raise _unusable(entry, f"{entry.value} is no Verb of this name")
    return verb


def _unusable(entry: EntryPoint, why: str) -> EnvironmentUnfit:
    package = entry.dist.name if entry.dist is not None else "unknown"
    return EnvironmentUnfit(
        f"command {entry.name!r}: {why}", hint=f"pip install --upgrade {package}, or uninstall it", package=package
    )
