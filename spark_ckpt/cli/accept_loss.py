"""`spark-ckpt accept-loss`: continue with a store that has lost epochs which its sinks have."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_ckpt.cli.options import AsJson, StorageOptions, StoreUri
from spark_ckpt.cli.output import print_json, print_line
from spark_ckpt.cli.stores import open_store
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.store.stage_folder import restore_call_of
from spark_ckpt.store.store import Store
from spark_ckpt.wording import epochs


def accept_loss(
    store: StoreUri,
    epoch: Annotated[
        int, typer.Option("--epoch", min=1, help="Newest epoch that a sink has: the job's refusal names it.")
    ],
    incarnation: Annotated[
        int, typer.Option("--incarnation", min=0, help="Newest incarnation that published: the refusal names it, too.")
    ] = 0,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Accept that the store has lost epochs which sinks have, so that the job may continue without them.

    Epoch numbers continue above them. The job produces the rows of the lost epochs again; the query of an outbox does, if
    it is rewound to the store's newest epoch. So first restore the sinks to the store's newest epoch, or to the one that
    this command names. Refused while a driver runs.
    """
    opened = open_store(store, storage_option)
    lost = list(opened.log.accept_loss(epoch, incarnation))
    log_state = opened.log.state()
    newest, again = log_state.latest, "It computes the rows after that epoch again."
    if log_state.kind == "outbox":
        again = "Rows of batches after that epoch come again if the query runs these batches again."
    if as_json:
        print_json({"lost": list[int](lost), "newest": newest, "next": log_state.last + 1})
    elif lost:
        print_line(
            f"{epochs(lost)}: lost. The {log_state.kind} continues from epoch {newest}; its next epoch is {lost[-1] + 1}."
        )
        print_line(f"{again} A sink that still has some of them then has them twice.")
        _print_doubt(opened, log_state, lost)
    else:
        print_line(
            f"the store has lost no epoch up to {epoch}; the {log_state.kind} continues from epoch {newest}. If a start still "
            "refuses a sink, it has another epoch of such a number: give it another table or topic (accept_new_sink)"
        )


def _print_doubt(store: Store, log_state: LogState, lost: list[int]) -> None:
    # A restore in the lost part of the log may have left out rows that no sink has acknowledged.
    if log_state.shown != log_state.latest and not all(log_state.lost[epoch] for epoch in lost):
        call = restore_call_of(store.location, log_state, log_state.shown)
        print_line(
            f"Whether a sink that has one of the lost epochs has everything up to epoch {log_state.latest} is not known. "
            f"If it has not, or if a start reports it, roll it back to epoch {log_state.shown}, "
            f"then {'run ' if log_state.kind == 'job' else ''}{call}."
        )
