"""Shared by the two Flink systems: Flink 2.3.0 from the package index, its Kafka connector, and their local cluster."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.systems import Environment, Run

if TYPE_CHECKING:
    from pyflink.common import Configuration

CONNECTOR = "org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2:5605c691d11a501382c383fecba37a7a552467da5ab7ba904ef5d6f3d62c5616"
ENVIRONMENT = Environment("flink", ("apache-flink==2.3.0",), (CONNECTOR,))
PARALLELISM = 2

# Larger batches than the client's 16 KiB. Transactions that outlive a restart, and end below the broker's maximum of 15 minutes.
PRODUCER = {"batch.size": "131072", "linger.ms": "20", "transaction.timeout.ms": "60000"}


def prepare(run: Run) -> None:
    """Set the environment of the JVM, which the first use of PyFlink starts. The workers' Python is in the JVM: it finds
    the packages of a virtual environment only through `PYTHONPATH`. The heap holds both managers and the state of all keys.
    """
    paths = [str(Path(__file__).parents[2]), sysconfig.get_paths()["purelib"], os.environ.get("PYTHONPATH", "")]
    logs = Path(run.folder, "log")
    logs.mkdir(exist_ok=True)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ["FLINK_LOG_DIR"] = str(logs)
    os.environ["JVM_ARGS"] = "-Xmx3g"


def configuration(run: Run) -> Configuration:
    """A cluster in this process's JVM, state on the heap. It does not restart a failed job, so a failure ends the program."""
    from pyflink.common import Configuration

    settings = Configuration()
    for name, value in (_cluster(run) | _checkpoints(run) | _start(run)).items():
        settings.set_string(name, value)
    return settings


def guarantee(run: Run) -> str:
    """Transactions end with checkpoints, so without checkpoints there are none."""
    return "exactly-once" if run.interval_ms else "at-least-once"


def _cluster(run: Run) -> dict[str, str]:
    return {
        "parallelism.default": str(PARALLELISM),
        "taskmanager.numberOfTaskSlots": str(PARALLELISM),
        "pipeline.jars": ";".join(Path(jar).as_uri() for jar in run.jars.split(":")),
        "pipeline.object-reuse": "true",
        "python.executable": sys.executable,
        "restart-strategy.type": "none",
        "rest.bind-port": "0",
    }


def _checkpoints(run: Run) -> dict[str, str]:
    every = {"execution.checkpointing.interval": f"{run.interval_ms} ms"} if run.interval_ms else {}
    return every | {
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": _checkpoint_folder(run).as_uri(),
        "state.backend.type": "hashmap",
    }


def _start(run: Run) -> dict[str, str]:
    """Restore from the newest checkpoint: without high availability a new cluster knows none. `_metadata` is written last."""
    complete = list(_checkpoint_folder(run).glob("*/chk-*/_metadata"))
    if not complete:
        return {}
    newest = max(complete, key=lambda path: path.stat().st_mtime_ns)
    return {"execution.state-recovery.path": newest.parent.as_uri()}


def _checkpoint_folder(run: Run) -> Path:
    return Path(run.folder, "checkpoints").resolve()
