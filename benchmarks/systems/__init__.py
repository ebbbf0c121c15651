"""The systems that are compared, one file each.

A file names its `System` records, which is all that the measuring side imports of it, and is itself the program that runs a
job: `python -m benchmarks.systems.<file> <arguments of Run>`, in the system's own virtual environment. Only the
standard library may be imported at its top. What a job means in a system stands in the job's file (`benchmarks/jobs/`),
under the system's `hook`.
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
    """A virtual environment of its own. No requirements: the one that measures. `jars`: `group:artifact:version:sha256`,
    from Maven Central. `class_archive`: set up with `spark-ckpt prepare`, as spark_ckpt's users do.
    """

    name: str
    requirements: tuple[str, ...] = ()
    jars: tuple[str, ...] = ()
    class_archive: bool = False


@dataclass(frozen=True)
class System:
    """One contender. `hook`: its name in the jobs' files. `processes`: how many of the program run side by side.
    `every_input`: it puts out one record per input; else only some of the running values. `note`: what a reader of its
    numbers has to know. `measures`: those that it is for, if not for all. `has_warm_standby`: the program is started twice, and the
    second waits for the end of the first; whether it is ready for that, by the folder that both share. `tells`: where
    a record's time goes is measured by what it tells. `checkpoints_s`: how long its checkpoints took that began
    since a moment (seconds of the epoch), by the folder that it keeps them in.
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
    """One start of a system's program; it runs until it is killed. A second start with the same `folder` resumes from what
    the system itself kept there. `interval_ms`: between checkpoints (epochs, commits). `jars`: files, joined by a colon.
    `told`: the file in which it writes down what it does (`telling`), if any.
    """

    hook: str
    job: str
    servers: str
    source: str
    target: str
    interval_ms: int
    folder: str
    jars: str = ""
    told: str = ""

    def arguments(self) -> list[str]:
        """For the command line."""
        return [f"--{name.replace('_', '-')}={value}" for name, value in asdict(self).items()]

    @classmethod
    def of_command_line(cls, arguments: Sequence[str] | None = None) -> Self:
        """What `arguments` wrote."""
        parser = argparse.ArgumentParser()
        for field in fields(cls):
            kind = int if field.name == "interval_ms" else str
            parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, required=True)
        return cls(**vars(parser.parse_args(arguments)))

    @property
    def implementation(self) -> object:
        """The job as this system expresses it: a function or a text."""
        return getattr(job_module(self.job), self.hook)


def job_module(job: str) -> ModuleType:
    """The file of a job."""
    return import_module(f"benchmarks.jobs.{job}")


def is_nexmark(job: str) -> bool:
    """Whether it is one of NEXMark's queries, which have a topic, answers and a measurement of their own (`benchmarks.nexmark`)."""
    return job.startswith("nexmark_")


def systems() -> dict[str, System]:
    """All of them, by name, in the order of `FILES`."""
    modules = [import_module(f"benchmarks.systems.{file}") for file in FILES]
    return {system.name: system for module in modules for system in module.SYSTEMS}
