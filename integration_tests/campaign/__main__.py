"""The command line of the campaigns. Each appends to the results file; `page` writes `docs/reliability.md`."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from integration_tests.broker import Broker, running_broker
from integration_tests.broker_cluster import BrokerCluster, running_cluster
from integration_tests.campaign.brokers import broker_kills, leader_kills
from integration_tests.campaign.damaged_starts import damaged_starts
from integration_tests.campaign.damages import damages
from integration_tests.campaign.delta_kills import delta_kills
from integration_tests.campaign.failovers import failovers, paused, silences, unfenced
from integration_tests.campaign.full_disks import full_disks
from integration_tests.campaign.handovers import handovers
from integration_tests.campaign.hazards import (
    future_times,
    odd_paths,
    odd_settings,
    poisoned_records,
    tables_behind,
    tables_changed,
)
from integration_tests.campaign.hazards.trials import with_broker, without_broker
from integration_tests.campaign.kafka_kills import kafka_kills
from integration_tests.campaign.line_kills import line_kills, topic_kills
from integration_tests.campaign.line_restores import line_restores
from integration_tests.campaign.outbox_kills import outbox_kills
from integration_tests.campaign.outbox_trials import outbox_checkpoints, outbox_connect, outbox_zombies
from integration_tests.campaign.page import write_page
from integration_tests.campaign.programs import programs
from integration_tests.campaign.rewinds import rewinds
from integration_tests.campaign.soak import soak
from integration_tests.campaign.sparks_damages import sparks_damages
from integration_tests.campaign.sparks_kills import sparks_kills, sparks_zombies
from integration_tests.campaign.stage_kills import cells, stage_kills
from integration_tests.campaign.trial import RESULTS, Results, merge
from integration_tests.campaign.zombies import zombies

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, rich_markup_mode=None)

WITH_BROKER: dict[str, Callable[[Broker, Path, int, int, Results], None]] = {
    "kafka": kafka_kills,
    "zombies": zombies,
    "brokers": broker_kills,
    "disks": full_disks,
    "soak": soak,
    "topics": topic_kills,
    "failovers": failovers,
    "silences": silences,
    "handovers": handovers,
    "paused": paused,
    "unfenced": unfenced,
    "outbox": outbox_kills,
    "outbox-zombies": outbox_zombies,
    "outbox-checkpoints": outbox_checkpoints,
    "outbox-connect": outbox_connect,
    "tables-behind": with_broker(tables_behind.SCENES),
    "tables-changed": with_broker(tables_changed.SCENES),
    "poisoned-records": with_broker(poisoned_records.SCENES),
}
WITH_CLUSTER: dict[str, Callable[[BrokerCluster, Path, int, int, Results], None]] = {"leaders": leader_kills}
WITHOUT: dict[str, Callable[[Path, int, int, Results], None]] = {
    "delta": delta_kills,
    "sparks": sparks_kills,
    "sparks-zombies": sparks_zombies,
    "sparks-damages": sparks_damages,
    "programs": programs,
    "lines": line_kills,
    "line-restores": line_restores,
    "stages": stage_kills,
    "damages": damages,
    "starts": damaged_starts,
    "rewinds": rewinds,
    "odd-settings": without_broker(odd_settings.SCENES),
    "odd-paths": without_broker(odd_paths.SCENES),
    "future-times": without_broker(future_times.SCENES),
}
USUAL = {
    "kafka": 300,
    "delta": 100,
    "sparks": 200,
    "sparks-zombies": 30,
    "sparks-damages": 200,
    "programs": 2000,
    "lines": 100,
    "topics": 30,
    "line-restores": 80,
    "stages": len(cells()),
    "zombies": 100,
    "brokers": 30,
    "leaders": 30,
    "damages": 2000,
    "starts": 200,
    "disks": 20,
    "soak": 60,
    "rewinds": 500,
    "failovers": 200,
    "silences": 50,
    "handovers": 50,
    "paused": 300,
    "unfenced": 1,
    "outbox": 300,
    "outbox-zombies": 50,
    "outbox-checkpoints": 50,
    "outbox-connect": 30,
    "tables-behind": 40,
    "tables-changed": 40,
    "poisoned-records": 40,
    "odd-settings": 40,
    "odd-paths": 40,
    "future-times": 40,
}
"""Trials of each campaign; minutes of the soak."""


@app.command()
def run(
    campaign: Annotated[str, typer.Argument(help=", ".join(USUAL))],
    trials: Annotated[int | None, typer.Option(help="Number of trials; minutes for the soak.")] = None,
    seed: Annotated[int | None, typer.Option(help="Draws data, moments and kinds.")] = None,
    results: Annotated[Path, typer.Option(help="File to which lines are appended.")] = RESULTS,
) -> None:
    """Run one campaign."""
    if campaign not in USUAL:
        raise typer.BadParameter(f"campaigns are {', '.join(USUAL)}")
    chosen = random.SystemRandom().randrange(10**6) if seed is None else seed
    number = USUAL[campaign] if trials is None else trials
    account = Results(results, campaign, chosen)
    with _folder() as folder:
        print(f"{campaign}: {number} trials, seed {chosen}, in {folder}", flush=True)
        if campaign in WITHOUT:
            WITHOUT[campaign](folder, number, chosen, account)
            return
        if campaign in WITH_CLUSTER:
            with running_cluster(folder / "brokers") as cluster:
                WITH_CLUSTER[campaign](cluster, folder, number, chosen, account)
            return
        with running_broker(folder / "broker") as broker:
            WITH_BROKER[campaign](broker, folder, number, chosen, account)


@app.command()
def page() -> None:
    """Add up the results, and write the figures into docs/reliability.md."""
    merge(RESULTS)
    write_page()


@contextmanager
def _folder() -> Iterator[Path]:
    """A temporary folder that is kept if the campaign fails, for inspection."""
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    app()
