"""Bytewax: a cluster of two processes with one worker each, and its recovery store."""

from __future__ import annotations

import multiprocessing
import socket
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.systems import Environment, Run, System

if TYPE_CHECKING:
    from collections.abc import Callable

    from bytewax.connectors.kafka import KafkaSinkMessage, KafkaSourceMessage
    from bytewax.dataflow import Dataflow, Stream

    Job = Callable[[Stream[KafkaSourceMessage[bytes, bytes]]], Stream[KafkaSinkMessage[bytes, bytes]]]

HERE = Environment("bytewax", ("bytewax[kafka]==0.21.1",))
SYSTEMS = (System("bytewax", "Bytewax", "bytewax", "at-least-once", HERE, "benchmarks.systems.bytewax"),)
# Processes, not two workers of one process (`-w 2`): workers are threads, which would contend for the interpreter's lock.
PROCESSES = 2
# Five times the default, as the performance guide advises: the sink waits for the broker once a batch.
BATCH = 5000


def main() -> None:
    """Run one job until killed: this process and a child, as `python -m bytewax.run -i 0|1 -a ...` twice."""
    run = Run.of_command_line()
    store = recovery_store(Path(run.folder))
    addresses = free_addresses(PROCESSES)
    fork = multiprocessing.get_context("fork")  # safe: no module is imported yet that a fork could harm
    for number in range(1, PROCESSES):
        fork.Process(target=work, args=(run, store, addresses, number), daemon=True).start()
    work(run, store, addresses, 0)


def recovery_store(folder: Path) -> Path:
    """Run `python -m bytewax.recovery folder 2`, atomically; in a child, so that this process can still fork."""
    store, unfinished = folder / "recovery", folder / f"recovery-{multiprocessing.current_process().pid}"
    if not store.exists():
        unfinished.mkdir(parents=True)
        creator = multiprocessing.get_context("fork").Process(target=create, args=(unfinished,))
        creator.start()
        creator.join()
        unfinished.rename(store)
    return store


def create(store: Path) -> None:
    """Create a recovery partition per worker, the advised number."""
    from bytewax.recovery import init_db_dir

    init_db_dir(store, PROCESSES)


def free_addresses(number: int) -> list[str]:
    """Addresses of different ports that were free a moment ago."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


def work(run: Run, store: Path, addresses: list[str], number: int) -> None:
    """One process of the cluster, by the function that `python -m bytewax.run` calls, whose `-s` takes whole seconds only."""
    from bytewax.recovery import RecoveryConfig
    from bytewax.run import cli_main

    cli_main(
        dataflow(run),
        workers_per_process=1,
        process_id=number,
        addresses=addresses,
        epoch_interval=timedelta(milliseconds=run.interval_ms) if run.interval_ms else None,
        recovery_config=RecoveryConfig(store),
    )


def dataflow(run: Run) -> Dataflow:
    """The job between a Kafka source and a Kafka sink, which are used without the error streams of their operators."""
    from bytewax import operators as op
    from bytewax.connectors.kafka import KafkaSink, KafkaSource
    from bytewax.dataflow import Dataflow

    flow = Dataflow(run.job)
    job: Job = run.implementation  # type: ignore[assignment]
    source = KafkaSource([run.servers], [run.source], batch_size=BATCH)
    # All records that have arrived at the sink are queued before it waits; a full queue would be an error.
    sink = KafkaSink([run.servers], run.target, {"queue.buffering.max.messages": 1_000_000})
    op.output("target", job(op.input("source", flow, source)), sink)
    return flow


if __name__ == "__main__":
    main()
