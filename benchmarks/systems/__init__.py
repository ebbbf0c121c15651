"""The systems that are compared, one file each.

A file defines its `System` records; the measuring side imports only these. The file is also the program that runs a job:
`python -m benchmarks.systems.<file> <arguments of Run>`, in the system's own virtual environment. Only the standard library may
be imported at its top. The job's file (`benchmarks/jobs/`) has the job's code for a system under the system's `hook`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from types import ModuleType
from typing import Literal, Self

FILES = ("spark_ckpt", "plain_pyspark", "flink_sql", "pyflink", "quix", "bytewax")
Guarantee = Literal["exactly-once", "at-least-once"]


@dataclass(frozen=True)
class Environment:
    """A virtual environment. Without requirements it is that of the measuring process. `jars`: `group:artifact:version:sha256`,
    from Maven Central. `class_archive`: set up with `spark-ckpt prepare`, as spark_ckpt's users do.
    """

    name: str
    requirements: tuple[str, ...] = ()
    jars: tuple[str, ...] = ()
    class_archive: bool = False


@dataclass(frozen=True)
class System:
    """One contender.

    `hook`: its name in the jobs' files. `processes`: number of processes of the program. `every_input`: it
    emits one record per input; else only some of the running values. `note`: a remark for readers of its numbers. `measures`: its
    only measures; empty for all. `has_warm_standby`: tests by the shared folder if the standby is ready; the program
    is then started twice, and the second process waits for the end of the first. `tells`: the program records its batches and
    epochs, from which the parts of a record's time are computed. `checkpoints_s`: durations of the checkpoints that began since a
    moment (seconds since 1970), a function of their folder.
    """

    name: str
    label: str
    hook: str
    guarantee: Guarantee
    environment: Environment
    module: str
    processes: int = 1
    every_input: bool = True
    note: str = ""
    measures: tuple[str, ...] = ()
    has_warm_standby: Callable[[str], bool] | None = None
    tells: bool = False
    checkpoints_s: Callable[[str, float], Sequence[float]] | None = None


@dataclass(frozen=True)
class Run:
    """One start of a system's program, which runs until it is killed. A second start with the same `folder` resumes from the state
    that the system kept there. `interval_ms`: between checkpoints or epochs. `jars`: files, joined by a colon. `records_file`:
    the file to which it writes its records (`telling`), if any.
    """

    hook: str
    job: str
    servers: str
    source: str
    target: str
    interval_ms: int
    folder: str
    jars: str = ""
    records_file: str = ""

    def arguments(self) -> list[str]:
        """Arguments for the command line."""
        return [f"--{name.replace('_', '-')}={value}" for name, value in asdict(self).items()]

    @classmethod
    def of_command_line(cls, arguments: Sequence[str] | None = None) -> Self:
        """Parse the arguments that `arguments` wrote."""
        parser = argparse.ArgumentParser()
        for field in fields(cls):
            kind = int if field.name == "interval_ms" else str
            parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, required=True)
        return cls(**vars(parser.parse_args(arguments)))

    @property
    def implementation(self) -> object:
        """The job's code for this system: a function or a text."""
        return getattr(job_module(self.job), self.hook)


def job_module(job: str) -> ModuleType:
    """Import the file of a job."""
    return import_module(f"benchmarks.jobs.{job}")


def is_nexmark(job: str) -> bool:
    """NEXMark's queries have a topic, answers and a measurement of their own (`benchmarks.nexmark`)."""
    return job.startswith("nexmark_")


def systems() -> dict[str, System]:
    """All systems by name, in the order of `FILES`."""
    modules = [import_module(f"benchmarks.systems.{file}") for file in FILES]
    return {system.name: system for module in modules for system in module.SYSTEMS}
