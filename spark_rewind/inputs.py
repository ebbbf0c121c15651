"""All inputs of a plan, read once and checked against each other: checkpoints, tables, declarations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from checkpoint_protocols.ids import ProcessId
from spark_ckpt.delta_files import LOG
from spark_ckpt.errors import CheckpointForeign, ConfigInvalid
from spark_ckpt.spark_internals.query_logs import SINK_LOG
from spark_rewind.checkpoint import QueryCheckpoint, read_checkpoint
from spark_rewind.declared import Declared, DeclaredTopic
from spark_rewind.outboxes import RewoundOutbox, read_outboxes
from spark_rewind.pinned_points import with_pins
from spark_rewind.pins import KeptPoint
from spark_rewind.places import find_places
from spark_rewind.positions import DeltaPosition
from spark_rewind.reading import local_folder
from spark_rewind.sink_logs import SinkLog, folders_with_log, read_sink_log, require_own
from spark_rewind.table_holding import held_in
from spark_rewind.tables import Table, find_tables, read_table


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of a plan.

    - `queries`: checkpoints by name.
    - `tables`: tables by their process.
    - `sinks`: logs of file sinks, each with the query that writes the folder.
    - `notes`: sentences about checkpoints and pinned points that are left out.
    - `refused`: reason by (query, pinned point).
    - `outboxes`: outboxes of the queries, at most one each.
    """

    queries: Mapping[str, QueryCheckpoint]
    tables: Mapping[ProcessId, Table]
    sinks: Sequence[tuple[QueryCheckpoint, SinkLog]]
    declared: Declared
    notes: Sequence[str] = ()
    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)
    outboxes: Sequence[RewoundOutbox] = ()

    def query(self, written: str) -> QueryCheckpoint:
        """Return the query that a declaration names, by name or id. Raises `ConfigInvalid`."""
        found = [each for each in self.queries.values() if written in (each.name, each.query)]
        if not found:
            known = ", ".join(sorted(self.queries))
            raise ConfigInvalid(
                f"the declaration names a query {written!r} that is not in the plan", hint=f"there are: {known}"
            )
        return found[0]


_TABLE_BACK = "bring that table back, or start the query first: its error names what to confirm"


def table_process(root: Path) -> ProcessId:
    """Return a table's process id in the graph."""
    return ProcessId(f"table {root}")


def read_inputs(
    folders: Sequence[str],
    tables: Sequence[str],
    declared: Declared,
    points: Sequence[KeptPoint] = (),
    outboxes: Sequence[str] = (),
) -> Inputs:
    """Read all inputs; change nothing. `points` are pinned points, which add points to their queries.

    `outboxes`: stores. The tables of their sinks take part like tables that are named, their topics like declared ones.

    Raises `ConfigInvalid` for a folder or query given twice, and for a table that is read and not given. Also raises
    the errors of reading.
    """
    places = find_places([local_folder(each) for each in folders])
    queries = {name: read_checkpoint(path, name) for name, path in places.named.items()}
    _refuse_copies(list(queries.values()))
    # Before the outboxes: a pinned batch has an epoch in their logs, too.
    pinned = with_pins(queries, points)
    # after the checkpoints: a batch that Spark has committed is then in the log, even if the query runs
    found = read_outboxes(outboxes, pinned.queries) if outboxes else []
    read = {
        table_process(root): read_table(root, held_in(points, root))
        for root in _roots(places.named.values(), [*tables, *_tables_of(found)], declared)
    }
    _refuse_replaced_tables(found, read.values())
    declared = _with_topics(declared, found)
    _refuse_copied_tables(read)
    _require_tables(pinned.queries.values(), read.values(), declared)
    notes = (*places.notes, *pinned.notes)
    inputs = Inputs(pinned.queries, read, (), declared, notes, pinned.refused, found)
    # declared folders name queries, so the queries come first
    inputs = replace(inputs, sinks=tuple(_sinks(inputs)))
    _require_folders(inputs)
    return inputs


def _tables_of(outboxes: Iterable[RewoundOutbox]) -> list[str]:
    found = [(each.name, sink.name, sink.table) for each in outboxes for sink in each.sinks if sink.table is not None]
    for outbox, sink, table in found:
        # The log names it, so an error about a folder that the user gave would lead nowhere.
        if not (table / LOG).is_dir():
            what = f"sink {sink} of outbox '{outbox}' writes the table {table}, and there is none"
            raise ConfigInvalid(what, hint=_TABLE_BACK)
    return [str(table) for _, _, table in found]


def _refuse_replaced_tables(outboxes: Iterable[RewoundOutbox], tables: Iterable[Table]) -> None:
    places = {table.root.resolve(): table for table in tables}
    for outbox in outboxes:
        for sink in outbox.sinks:
            table = places.get(sink.table.resolve()) if sink.table is not None else None
            if table is not None and sink.table_id and sink.table_id not in table.ids:
                what = f"sink {sink.name} of outbox '{outbox.name}' wrote another table than the one at {table.root}"
                raise ConfigInvalid(what, hint=_TABLE_BACK)


def _with_topics(declared: Declared, outboxes: Iterable[RewoundOutbox]) -> Declared:
    """Add the topics of outboxes to the declared ones."""
    known = {(topic.topic, writer) for topic in declared.topics for writer in topic.written_by}
    found = [
        DeclaredTopic(topic=topic, written_by=[each.query.query])
        for each in outboxes
        for topic in sorted({name for sink in each.sinks for name in sink.topics})
        # A declaration names a query by its id or its name.
        if not known & {(topic, each.query.query), (topic, each.query.name)}
    ]
    return declared.model_copy(update={"topics": [*declared.topics, *found]})


def _refuse_copies(queries: Sequence[QueryCheckpoint]) -> None:
    # A copied checkpoint has the query's id, and both would count as the writer of one table.
    ids = Counter(each.query for each in queries)
    same = [each for each in queries if ids[each.query] > 1]
    if same:
        what = f"{same[0].folder} and {same[1].folder} are of one query, {same[0].query}"
        raise ConfigInvalid(what, hint="one is a copy of the other: name the one that the query runs with")


def _refuse_copied_tables(tables: Mapping[ProcessId, Table]) -> None:
    owner: dict[str, Table] = {}
    for table in tables.values():
        for each in table.ids:
            if each in owner:
                what = f"{owner[each].root} and {table.root} are one table, {each}"
                raise ConfigInvalid(what, hint="one is a copy of the other: name the one that the queries use")
            owner[each] = table


def _roots(folders: Iterable[Path], tables: Sequence[str], declared: Declared) -> list[Path]:
    """Return each table once: tables that were named, and tables that contain a checkpoint."""
    named = [root for each in tables for root in find_tables(local_folder(each))]
    named += [local_folder(each.path) for each in declared.tables]
    around = [parent for folder in folders for parent in folder.parents if (parent / LOG).is_dir()]
    found: dict[Path, Path] = {}
    for root in [*named, *around]:
        if not (root / LOG).is_dir():
            raise CheckpointForeign(
                f"{root} is no Delta table: there is no {LOG} in it", hint="name the table's own folder"
            )
        # By its real place: a table may be named, declared and around a checkpoint under different paths.
        found.setdefault(root.resolve(), root)
    return list(found.values())


def _require_tables(queries: Iterable[QueryCheckpoint], tables: Iterable[Table], declared: Declared) -> None:
    known = {each for table in tables for each in table.ids} | set(declared.other_tables)
    for query in queries:
        for batch in query.known:
            # an unseen edge would make the line wrong: refuse it
            for end in batch.ends.values():
                if isinstance(end, DeltaPosition) and end.table not in known:
                    hint = (
                        "name the table with --table, or a folder that it is in; if none of the queries writes it, "
                        "declare its id under other_tables"
                    )
                    raise ConfigInvalid(
                        f"{query.name} reads a Delta table that was not named, id {end.table}", hint=hint
                    )


def _require_folders(inputs: Inputs) -> None:
    known = {log.folder.resolve() for _, log in inputs.sinks}
    known |= {local_folder(each).resolve() for each in inputs.declared.other_folders}
    for query in inputs.queries.values():
        read = folders_with_log(path for log in query.files.values() for path in log.entries)
        own = {log.folder.resolve() for writer, log in inputs.sinks if writer is query}
        if both := sorted(each for each in read if each.resolve() in own):
            hint = "another query writes it: declare that one"
            raise ConfigInvalid(f"{query.name} is declared to write {both[0]}, and reads files of it", hint=hint)
        strange = next((each for each in sorted(read) if each.resolve() not in known), None)
        if strange is not None:
            hint = "declare who writes it under folders; if none of the queries does, name it under other_folders"
            raise ConfigInvalid(f"{query.name} reads files of {strange}, which a file sink writes", hint=hint)


def _sinks(inputs: Inputs) -> Iterator[tuple[QueryCheckpoint, SinkLog]]:
    for each in inputs.declared.folders:
        folder = local_folder(each.path)
        if not (folder / SINK_LOG).is_dir():
            raise CheckpointForeign(
                f"{folder} has no log of a file sink: no {SINK_LOG} in it", hint="name the sink's own folder"
            )
        query, log = inputs.query(each.written_by), read_sink_log(folder / SINK_LOG)
        require_own(query, log)
        yield query, log
