"""`simulate --record` and `--replay`: a simulated run as a file."""

from __future__ import annotations

from pathlib import Path

import typer

import checkpoint_lab as sim
from checkpoint_lab.recorded import Recording, difference, read_recording, recording
from spark_ckpt.errors import ConfigInvalid

OWN_OPTIONS = frozenset({"replay", "diagram", "everything", "as_json"})


def write(file: Path, scenario: sim.Scenario, outcome: sim.Outcome) -> None:
    """Write every choice of the run and its moments to a file. Raises `ConfigInvalid`."""
    try:
        file.write_text(recording(scenario, outcome.trace).as_text())
    except OSError as error:
        raise ConfigInvalid(f"--record {file}: {error.strerror}", hint="name a file in a folder that exists") from error


def refuse_other_options(context: typer.Context) -> None:
    """Refuse options that the recorded file already determines. Raises `ConfigInvalid`."""
    given = [name for name in context.params if name not in OWN_OPTIONS and _is_given(context, name)]
    if given:
        option = given[0].replace("_", "-")
        raise ConfigInvalid(f"--replay and --{option}", hint=f"the file says what --{option} was: leave it out")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def read(file: Path) -> tuple[Recording, str | None]:
    """Return a recorded run and the first difference of its replay, if any. Raises `TraceInvalid`, `NotOnTheMenu`."""
    recorded = read_recording(file)
    return recorded, difference(recorded)
