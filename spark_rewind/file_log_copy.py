"""Copy of a file source's log up to one entry.

Spark compacts about every tenth entry, with all entries before it, into one file `<entry>.compact`. Later it deletes
the single files.
"""

from __future__ import annotations

from pathlib import Path

from spark_ckpt.errors import CheckpointDamaged
from spark_ckpt.spark_internals.query_logs import COMPACT, batch_number, file_entries_text
from spark_rewind.durable import link_or_copy, write_new
from spark_rewind.reading import names
from spark_rewind.source_files import raw_entries


def copy_file_log(source: Path, target: Path, newest: int) -> None:
    """Copy entries up to `newest`, -1 for none. Raises `CheckpointDamaged` if one is missing, `RewindNotPermitted`.

    Single files are linked if the log has every file that Spark reads: those since the newest compacted one. Otherwise
    all entries go into one compacted file. Spark derives its compaction interval from that file's number, so the log is
    valid under any setting.
    """
    if newest < 0:
        return
    there = {number: name for name in names(source) if (number := batch_number(name)) is not None and number <= newest}
    folded = max((number for number, name in there.items() if name.endswith(COMPACT)), default=None)
    first = 0 if folded is None else folded
    if all(number in there for number in range(first, newest + 1)):
        for name in there.values():
            link_or_copy(source / name, target / name)
            checksum = f".{name}.crc"
            if (source / checksum).is_file():
                link_or_copy(source / checksum, target / checksum)
        return
    entries = [each for number, each in sorted(raw_entries(source), key=lambda each: each[0]) if number <= newest]
    if {number for number, _ in raw_entries(source)}.isdisjoint({newest}):
        hint = "the log of the files that were read is damaged: restore it from a backup"
        raise CheckpointDamaged(f"{source} has lost entry {newest}", hint=hint)
    write_new(target / f"{newest}{COMPACT}", file_entries_text(entries).encode())
