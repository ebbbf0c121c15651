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


LOOK, CHANGE, RUN = "Look into a store", "Change a store", "Run and hand over jobs"
CHECK, PLAIN, PROTOCOLS = "Check and set up", "Plain queries", "Try it, and protocols"
OTHER = "Of other packages"
GROUPS = (LOOK, CHANGE, RUN, CHECK, PLAIN, PROTOCOLS, OTHER)
"""Headings of the help, in order."""


@dataclass(frozen=True, slots=True)
class Verb:
    """A command or a group of commands: `member` of `module`. `group` is its heading in the help."""

    name: str
    module: str
    member: str
    short_help: str = ""
    group: str = OTHER

    def add_to(self, app: typer.Typer) -> None:
        """Load the command. Other modules stay unloaded: loading all of them takes longer than most commands run."""
        member = getattr(import_module(self.module), self.member)
        if isinstance(member, typer.Typer):
            app.add_typer(member, name=self.name, short_help=self.short_help)
        else:
            app.command(self.name, short_help=self.short_help)(member)


_CLI = "spark_ckpt.cli"
OWN = (
    Verb("list", f"{_CLI}.list", "list_epochs", "List the epochs that can be restored.", LOOK),
    Verb("show", f"{_CLI}.show", "show", "Show one epoch: cursors, state, output.", LOOK),
    Verb("state", f"{_CLI}.state", "state", "Print an operator's state at an epoch.", LOOK),
    Verb("diff", f"{_CLI}.diff", "diff", "Compare the state of two epochs.", LOOK),
    Verb("ui", f"{_CLI}.ui", "ui", "Serve the page of jobs to a browser.", LOOK),
    Verb("report", f"{_CLI}.report", "report", "Write the page as one HTML file.", LOOK),
    Verb("savepoint", f"{_CLI}.savepoint", "app", "Name epochs, so that they are kept for ever.", CHANGE),
    Verb("restore", f"{_CLI}.restore", "restore", "Show what restoring an epoch changes; restore a line.", CHANGE),
    Verb("line", f"{_CLI}.line", "line", "List consistent cuts over the stores of several programs.", LOOK),
    Verb("rescale", f"{_CLI}.rescale", "rescale", "Change the number of an operator's key groups.", CHANGE),
    Verb("bootstrap", f"{_CLI}.bootstrap", "bootstrap", "Give state to an operator that is new in a job.", CHANGE),
    Verb(
        "accept-loss", f"{_CLI}.accept_loss", "accept_loss", "Continue without epochs that the store has lost.", CHANGE
    ),
    Verb("lease", f"{_CLI}.lease", "lease", "Show the driver of a job, and its standbys.", RUN),
    Verb("handover", f"{_CLI}.handover", "handover", "Hand a job over to a standby.", RUN),
    Verb("verify", f"{_CLI}.verify", "verify", "Check the files of every epoch.", CHECK),
    Verb("explain", f"{_CLI}.explain", "explain", "Explain an error and its cure.", CHECK),
    Verb("doctor", f"{_CLI}.doctor", "doctor", "Check this machine, a store and a broker.", CHECK),
    Verb("connectors", f"{_CLI}.connectors", "connectors", "List the installed sources and sinks.", CHECK),
    Verb("jars", f"{_CLI}.jars", "jars", "Print a connector's jars, for spark-submit.", CHECK),
    Verb("prepare", f"{_CLI}.prepare", "prepare", "Make later starts on this machine fast.", CHECK),
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
