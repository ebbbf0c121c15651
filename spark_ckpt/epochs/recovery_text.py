"""A restore plan in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spark_ckpt.epochs.identity import Confirmed
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import Kind
from spark_ckpt.epochs.recovery import SinkPlan
from spark_ckpt.wording import counted, epochs, one_or_many


def sink_lines(epoch: int, sink: SinkPlan, kind: Kind = "job") -> Iterable[str]:
    """Describe the effect on one sink, in sentences."""
    producer = "the restored job" if kind == "job" else "the query"
    if sink.replaced:
        yield "another table or topic takes its place and begins with the first new epoch; what was published stays where it is"
        return
    if sink.publish:
        yield f"{epochs(sink.publish)} ({counted(sink.publish_rows, 'row')}) will be published first, as far as the sink lacks them"
    if sink.held_rows:
        yield f"{counted(sink.held_rows, 'row')} that this epoch holds back will be published with the first new one"
    if sink.again:
        stay = one_or_many(len(sink.again), "stays", "stay")
        yield (
            f"{epochs(sink.again)} ({counted(sink.again_rows, 'row')}) {stay} visible, and {producer} produces these rows "
            "again: give it another table or topic, or take them back there first"
        )
    if sink.damaged:
        yield f"not readable, and so not counted: the rows of {epochs(sink.damaged)}"
    if not sink.complete:
        yield f"retention has dropped epochs after {epoch}: their rows may be visible as well"
    if sink.never:
        # A driver that died may have published the newest of them before the log had the acknowledgement.
        are, it = one_or_many(len(sink.never), "is", "are"), one_or_many(len(sink.never), "it", "them")
        yield (
            f"{epochs(sink.never)} {are} not known to be published: rows that the sink has of {it} stay visible, and {producer} "
            "produces all of them again"
        )
    if sink.elsewhere:
        yield f"visible of branches left before: {epochs(sink.elsewhere)}; rows of the same input may be among them"
    if not (sink.publish or sink.held_rows or sink.again or sink.never or sink.elsewhere):
        yield "has everything up to this epoch and nothing after it"


def restore_call(log_state: LogState, target: str | int, new_sinks: Sequence[str] = ()) -> str:
    """Return the start that restores `target`, an epoch or a savepoint. For an outbox the query has to go back first."""
    if log_state.kind == "job":
        return Confirmed(new_sinks=frozenset(new_sinks)).call(target)
    epoch = log_state.savepoints.get(target, log_state.latest) if isinstance(target, str) else target
    brief = log_state.by_id.get(epoch)
    batch = brief.spark_batch if brief is not None else None
    back = "its beginning" if batch is None else f"batch {batch.number}"
    given = [f"accept_new_sink={list(new_sinks)!r}"] if new_sinks else []
    # The outbox follows its query; only a branch that it has left needs its number.
    if epoch and epoch not in {each.epoch for each in log_state.lineage()}:
        given.insert(0, f"restore={epoch}")
    call = ", ".join(["writer", *given])
    return f"rewind the query to {back} (spark-ckpt rewind plan --outbox STORE), then out.start({call})"
