"""Identity of a micro-batch, read from the checkpoint of its query.

Spark writes `metadata` when the query starts for the first time, and `offsets/N` before batch N runs. Both are durable
and of one form in every version, classic or Connect.
"""

from __future__ import annotations

from hashlib import sha256

from spark_ckpt.epochs.records import SparkBatch
from spark_ckpt.errors import CheckpointDamaged, CheckpointForeign, ConfigInvalid
from spark_ckpt.spark_internals.query_logs import COMMITS, ID_FILE, OFFSETS, Unreadable, parse_id
from spark_ckpt.store.location import Location


class Checkpoint:
    """The checkpoint of a plain query at `location`."""

    def __init__(self, location: Location) -> None:
        self._location = location

    def query(self) -> str | None:
        """Return the id of the query; None if the query has never started. Raises `CheckpointDamaged`."""
        try:
            # Damaged bytes are replaced, so that `parse_id` refuses them.
            return parse_id(self._location.read_bytes(ID_FILE).decode(errors="replace"))
        except FileNotFoundError:
            return None
        except Unreadable as error:
            raise CheckpointDamaged(
                f"the checkpoint's file {ID_FILE} cannot be read: {error}",
                checkpoint=self._location.uri,
                hint="bring the checkpoint back from a backup",
            ) from error

    def batch(self, number: int) -> SparkBatch:
        """Return the identity of the batch that Spark runs.

        Raises `CheckpointForeign` if this checkpoint does not belong to the running query.
        """
        query, offsets = self.query(), self._digest(number)
        if query is None or not offsets:
            raise CheckpointForeign(
                f"the running query's batch {number} is not in this checkpoint",
                checkpoint=self._location.uri,
                hint="start the query with Outbox.start, which gives it the outbox's checkpoint; checkpoint= must name the same "
                "folder from the program and from Spark",
            )
        # With the digest of the batch before: after a rewind several batches have one number.
        return SparkBatch(
            query=query, number=number, offsets=offsets, before=self._digest(number - 1) if number else ""
        )

    def newest(self) -> int:
        """Return the number of the newest batch that Spark has planned; -1 if there is none."""
        names = (info.path for info in self._location.list(OFFSETS))
        return max((int(name) for path in names if (name := path.rpartition("/")[2]).isdigit()), default=-1)

    def committed(self) -> SparkBatch | None:
        """Return the newest planned batch if Spark has committed it, else None."""
        newest = self.newest()
        # Spark writes commits/N after the function has returned. Without it Spark calls for the batch again, and the
        # call publishes.
        if newest < 0 or self._location.size(f"{COMMITS}/{newest}") is None:
            return None
        return self.batch(newest)

    def _digest(self, number: int) -> str:
        try:
            return sha256(self._location.read_bytes(f"{OFFSETS}/{number}")).hexdigest()
        except FileNotFoundError:
            return ""


def checkpoint_location(uri: str, storage_options: dict[str, str]) -> Location:
    """Return the location of a checkpoint. Raises `ConfigInvalid` for an empty one."""
    if not uri.strip():
        raise ConfigInvalid(
            "an outbox needs the query's checkpoint", hint='Outbox(..., checkpoint="/data/checkpoints/q")'
        )
    return Location(uri, storage_options)
