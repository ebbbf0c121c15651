"""`spark-ckpt rewind`: roll plain PySpark queries back together to one consistent point."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_ckpt.cli.options import AsJson
from spark_ckpt.cli.output import print_json
from spark_ckpt.errors import ConfigInvalid, EnvironmentUnfit, SourceInvalid
from spark_rewind.cli import apply as carry_out
from spark_rewind.cli import pins
from spark_rewind.cli.pins import Checkpoints, DeclaredFile, Outboxes, Tables
from spark_rewind.cli.plan_text import print_plan
from spark_rewind.declared import Declared, read_declared
from spark_rewind.planning import RewindRequest, plan_rewind

if TYPE_CHECKING:
    from spark_ckpt_kafka.control import Positions


class BrokerTopics:
    """Offsets of one cluster's topics. Each answer is cached for the duration of a plan. Raises `SourceInvalid`."""

    def __init__(self, servers: str, properties: Mapping[str, str]) -> None:
        if util.find_spec("spark_ckpt_kafka") is None or util.find_spec("kafka") is None:
            raise EnvironmentUnfit("the Kafka connector is not installed", hint="pip install 'spark-ckpt[kafka]'")
        from spark_ckpt_kafka.control import KafkaControl
        from spark_ckpt_kafka.options import Connection, split_options

        control = self._control = KafkaControl(Connection(servers, split_options(properties)[0]))
        self.earliest = cache(partial(self._asked, control.beginnings))
        # Records of an open transaction count, too: they may become public after the plan.
        self.ends = cache(partial(self._asked, partial(control.ends, committed=False)))
        self.first_at = cache(partial(self._asked, control.first_at))

    def close(self) -> None:
        """Close the connection."""
        self._control.close()

    def _asked(self, ask: Callable[..., Positions], topic: str, *at_ms: int) -> dict[int, int]:
        from spark_ckpt_kafka.control import ControlError

        try:
            found = ask(self._control.partitions([topic]), *at_ms)
        except ControlError as error:
            raise SourceInvalid(f"topic {topic}: {error.what}", hint=error.hint) from error
        return {partition: offset for (_, partition), offset in sorted(found.items())}


app = typer.Typer(
    help="Take plain PySpark queries back together to one consistent point: plan, apply, undo.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


app.command("pin")(pins.pin)
app.command("points")(pins.points)
app.command("unpin")(pins.unpin)


@app.callback()
def rewind() -> None:
    """Roll plain PySpark queries back together to one consistent point: plan, apply, undo."""


@app.command("plan")
def plan(
    checkpoints: Checkpoints,
    to: Annotated[str, typer.Option(metavar="TIME|QUERY@BATCH|TABLE@VERSION|POINT", help="How far back at least.")],
    table: Tables = None,
    declared: DeclaredFile = None,
    outbox: Outboxes = None,
    pins: Annotated[
        Path | None, typer.Option(metavar="PINS", help="Pinned points take part. A point's name is a target, too.")
    ] = None,
    bootstrap_servers: Annotated[
        str | None, typer.Option(metavar="SERVERS", help="Ask this Kafka cluster what topics hold.")
    ] = None,
    properties: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="How to log in to the cluster: NAME=VALUE lines, as Kafka's tools take."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute the batch that every query rolls back to, with reasons. Changes nothing and needs no JVM.

    The plan is the greatest consistent line at or before the target: no query keeps data that another query undoes.
    """
    if properties is not None and bootstrap_servers is None:
        raise ConfigInvalid("--properties is for --bootstrap-servers", hint="name the cluster as well")
    known = read_declared(declared) if declared is not None else Declared()
    broker = _asked(bootstrap_servers, properties) if bootstrap_servers is not None else None
    try:
        found = plan_rewind(
            RewindRequest(checkpoints, to, table or (), known, broker, pins, outbox or ()),
            time.time_ns() // 1_000_000,
        )
    finally:
        if broker is not None:
            broker.close()
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        print_plan(found)


def _asked(servers: str, properties: Path | None) -> BrokerTopics:
    # Loaded here: most plans ask no cluster, and take less time than that.
    from spark_ckpt.cli.broker_check import read_properties

    return BrokerTopics(servers, read_properties(properties))


app.command("apply", short_help="Execute a plan.")(carry_out.apply)
app.command("undo", short_help="Undo `apply`.")(carry_out.undo)
