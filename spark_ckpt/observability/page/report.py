"""One HTML file about the current state of a store: to attach, to keep, to read without access to the store."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from spark_ckpt.connector import Json
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.recovery import plan
from spark_ckpt.epochs.recovery_text import sink_lines
from spark_ckpt.errors import CkptError, EnvironmentUnfit
from spark_ckpt.observability.page.facts import epoch_of, facts_of
from spark_ckpt.store.stage_folder import restore_call_of
from spark_ckpt.store.store import Store
from spark_ckpt.wording import counted, epochs


def going_back(store: Store, epoch: int) -> Json:
    """Return the effects of restoring `epoch`. Verifies every file that the restore needs.

    Raises `EpochNotFound` or `EpochDamaged`, like the restore itself.
    """
    log_state = store.log.state()
    planned = plan(log_state, epoch, store.log.manifest, store.verify)
    state = sum(each.bytes for each in planned.state)
    moved = f"{counted(len(planned.cursors), 'source')} and {counted(len(planned.state), 'operator')} go back to where they stood"
    return {
        "epoch": planned.epoch,
        "call": restore_call_of(store.location, log_state, planned.epoch),
        "state_bytes": state,
        "lines": [
            f"a new incarnation, {planned.incarnation}, begins; its first epoch is {planned.next_epoch}",
            *([f"{epochs(planned.abandoned)} of the current branch will be dropped"] if planned.abandoned else []),
            *([moved] if log_state.kind == "job" else []),
        ],
        "sinks": {sink.sink: list(sink_lines(planned.epoch, sink, log_state.kind)) for sink in planned.sinks},
    }


_ASSETS = files("spark_ckpt.observability.page") / "assets"


def asset(name: str) -> str:
    """Return the text of one of the page's files."""
    return (_ASSETS / name).read_text(encoding="utf-8")


def drawn(title: str, jobs: Sequence[Json] | None) -> str:
    """Return the page as HTML, with everything escaped. `jobs`: the data, or None for a page that requests it from its
    server.

    Raises `EnvironmentUnfit` without jinja2.
    """
    try:
        from jinja2 import Environment
    except ImportError as error:
        raise EnvironmentUnfit("the page needs the package jinja2", hint="pip install 'spark-ckpt[report]'") from error
    template = Environment(autoescape=True).from_string(asset("page.html"))
    return template.render(title=title, data=jobs, style=asset("page.css"), script=asset("page.js"))


MOST_CLOSELY = 100
"""Number of newest epochs shown with details, in addition to those with a savepoint."""


def report(store: Store, now_ms: int) -> str:
    """Return self-contained HTML. `now_ms`: Unix time in ms.

    Raises the errors of opening the store, and `EnvironmentUnfit`.
    """
    facts = facts_of(store, now_ms)
    details: dict[str, Json] = {str(epoch): _closely(store, epoch) for epoch in _chosen(store.log.state())}
    return drawn(f"{facts['job']} · spark_ckpt", [{**facts, "details": details}])


def _chosen(log_state: LogState) -> list[int]:
    named = sorted(set(log_state.savepoints.values()) & log_state.by_id.keys())
    return sorted({*named, *(brief.epoch for brief in log_state.epochs[-MOST_CLOSELY:])})


def _closely(store: Store, epoch: int) -> Json:
    try:
        detail: Json = epoch_of(store, epoch)
    except CkptError as error:
        return {"epoch": {"damage": str(error)}, "back": None}
    try:
        return {"epoch": detail, "back": going_back(store, epoch)}  # may fail for an epoch that can be read
    except CkptError as error:
        return {"epoch": detail, "back": {"damage": str(error)}}
