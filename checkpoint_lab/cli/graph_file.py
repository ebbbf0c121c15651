"""Graphs by name, or from a JSON file: `{"processes": ["s", "a", "k"], "channels": [["s", "a"], ["a", "k"]]}`."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

import checkpoint_lab as sim
from checkpoint_protocols.graph import COORDINATOR, Graph
from checkpoint_protocols.machine import ProtocolViolation
from spark_ckpt.errors import ConfigInvalid

WAYS_MAX = 1_000
"""Maximal number of paths from sources to processes, loops once around. Each row becomes a message for each path."""

BYTES_MAX = 100_000

ProcessName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,30}$")]


class GraphFile(BaseModel):
    """Content of a graph file. Sources are processes without inputs, sinks are processes without outputs."""

    model_config = ConfigDict(extra="forbid", strict=True)

    processes: list[ProcessName] = Field(min_length=2, max_length=50)
    channels: list[Annotated[list[ProcessName], Field(min_length=2, max_length=2)]] = Field(min_length=1)

    @model_validator(mode="after")
    def _agree(self) -> GraphFile:
        named = {name for channel in self.channels for name in channel}
        if len(set(self.processes)) < len(self.processes):
            raise ValueError("a process is named twice")
        if unknown := sorted(named - set(self.processes)):
            raise ValueError(f"channels name {', '.join(unknown)}, which processes lacks")
        if alone := sorted(set(self.processes) - named):
            raise ValueError(f"no channel of {', '.join(alone)}")
        if COORDINATOR in self.processes:
            raise ValueError(f"{COORDINATOR} is the protocol's own process")
        return self


def chosen_graph(named: str) -> Graph:
    """Return a graph by name, or from a file if the name ends in `.json`. Raises `ConfigInvalid`."""
    if named.endswith(".json"):
        return _read(Path(named))
    if named not in sim.GRAPHS:
        there = ", ".join(sim.GRAPHS)
        raise ConfigInvalid(f"no graph {named!r}", hint=f"there are: {there}; or name a file that ends in .json")
    return sim.GRAPHS[named]


def _read(path: Path) -> Graph:
    try:
        with path.open("rb") as file:
            text = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise ConfigInvalid(f"graph {path}: {error.strerror}", hint="name a file that can be read") from error
    if len(text) > BYTES_MAX:
        raise ConfigInvalid(f"graph {path} has more than {BYTES_MAX} bytes", hint="describe a smaller graph")
    try:
        described = GraphFile.model_validate_json(text)
        graph = Graph(path.stem, tuple((source, target) for source, target in described.channels))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise _invalid(path, f"{where}: {first['msg']}") from error
    except ProtocolViolation as error:
        raise _invalid(path, error.what) from error
    _refuse_what_branches_too_much(path, graph)
    return graph


def _invalid(path: Path, what: str) -> ConfigInvalid:
    hint = 'write {"processes": ["s", "a", "k"], "channels": [["s", "a"], ["a", "k"]]}'
    return ConfigInvalid(f"graph {path}: {what}", hint=hint)


def _refuse_what_branches_too_much(path: Path, graph: Graph) -> None:
    ways, new = 0, deque((source, 0) for source in graph.sources)
    while new:
        at, hops = new.popleft()
        ways += 1
        if ways > WAYS_MAX:
            raise _invalid(path, f"more than {WAYS_MAX} ways lead from the sources to the processes")
        looped = ((graph.ends[channel][1], hops + (channel in graph.back_edges)) for channel in graph.outputs[at])
        new.extend(each for each in looped if each[1] <= 1)
