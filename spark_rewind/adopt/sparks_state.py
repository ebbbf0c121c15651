"""State of Spark's own operators of a plain query, for a job that has the same operators inside of `transform`."""

from __future__ import annotations

from spark_ckpt.epochs.records import SparkState
from spark_ckpt.errors import CheckpointDamaged, FormatUnknown
from spark_ckpt.spark_internals.checkpoint_files import metadata_of
from spark_ckpt.spark_internals.query_logs import COMMITS, OFFSETS, STATE, parse_batch
from spark_ckpt.spark_internals.settings import PROVIDER, QUERY_SETTINGS
from spark_ckpt.spark_internals.state_selection import UnknownStateFolder, select
from spark_ckpt.store.spark_state import Known, Moment
from spark_ckpt.store.store import Store
from spark_rewind.adopt.plan import Taking
from spark_rewind.checkpoint import read_checkpoint
from spark_rewind.reading import HINT_DAMAGED, text_of, typed_errors


def spark_state(taking: Taking, store: Store, incarnation: int) -> SparkState:
    """Give the files of the state after the taken batch names in the store.

    Raises `CheckpointDamaged`, `CheckpointUnreadable`, a `StoreOutage`.
    """
    state, number = taking.folder / STATE, str(taking.batch)
    batches = read_checkpoint(taking.folder, taking.folder.name).batches
    # Of earlier batches, too: the state may be an older snapshot and the changes since.
    ids = {each.number + 1: each.state_ids for each in batches if each.state_ids is not None}
    try:
        text, commit = text_of(taking.folder / OFFSETS / number), text_of(taking.folder / COMMITS / number)
        with typed_errors(state):
            selected = select(state, taking.batch + 1, taking.batch, ids, alone=True)
        moment = Moment(
            incarnation,
            taking.batch,
            metadata_of(text),
            commit,
            parse_batch(text).conf.get(PROVIDER, QUERY_SETTINGS[PROVIDER]),
            # The checkpoint format: 2 puts ids into the names of state files.
            2 if taking.state_has_ids else 1,
            max(each.partitions for each in taking.spark_operators),
            tuple(each.name for each in taking.spark_operators),
        )
        return store.spark_states.keep(state, selected.files, moment, Known())
    except FileNotFoundError as error:
        raise CheckpointDamaged(f"{error.filename} went away while it was read", hint=HINT_DAMAGED) from None
    except UnknownStateFolder as error:
        raise FormatUnknown(str(error), hint="start this query from the beginning as a job") from None
