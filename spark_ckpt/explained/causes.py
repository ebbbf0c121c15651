"""The usual causes and the cure of each error, in one place. The texts appear on a screen and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ErrorCause:
    """The usual cause of one condition, and the action of an operator."""

    cause: str
    cure: str


_OUTAGE = (
    "A running job waits for it, up to `store_patience`, then continues from its last epoch. "
    '`run.lastProgress["outage"]` names the outage.'
)

_SETTINGS: Mapping[str, ErrorCause] = {
    "CKPT_CONFIG_INVALID": ErrorCause(
        "A setting, a `spark.ckpt.*` key, a connector's option or a command's argument is misspelt, out of range, "
        "or contradicts another.",
        "Write what the message proposes; docs/settings.md has every setting, docs/connectors.md every option.",
    ),
    "CKPT_GRAPH_INVALID": ErrorCause(
        "The described job cannot run: it has no sink, two things of one name, a feedback that nothing closes, or "
        "schemas that do not fit.",
        "Change the program as the message says; `job.explain()` prints the graph.",
    ),
    "CKPT_NOT_HERE": ErrorCause(
        "The program calls a method that Spark's DataFrame has and a stream of a job does not.",
        "Use what the message names instead; docs/porting.md maps Spark's calls to these.",
    ),
    "CKPT_NAME_UNKNOWN": ErrorCause(
        "The program asks `spark_ckpt` or a connector's package for a name that it does not have.",
        "Write the name that the message proposes; docs/api.md lists the names.",
    ),
    "CKPT_OPERATION_REFUSED": ErrorCause(
        "An operation keeps something between batches (an aggregate, a join, `dropDuplicates`) or cannot be "
        "replayed. Spark's own state "
        "is not part of an epoch, so it would be gone at the next start. Or it asks for the name of a file that a source's task "
        "reads (`input_file_name()`), which Spark does not know.",
        "Use the operator of a job that does the same; docs/operators.md lists them. "
        "`FilesSource(..., positions=True)` adds the file to every row.",
    ),
    "CKPT_CONNECTOR_UNKNOWN": ErrorCause(
        "No installed package declares a connector of this name.",
        "Install it, often as an extra (`pip install 'spark-ckpt[kafka]'`); `spark-ckpt connectors` lists those "
        "that are there.",
    ),
    "CKPT_CONNECTOR_BROKEN": ErrorCause(
        "A connector's package is half installed, lacks what it imports, or declares an object that is not a connector.",
        "Install it again with its extra; if that does not help, ask its authors.",
    ),
    "CKPT_CONNECTOR_TOO_NEW": ErrorCause(
        "The connector was written for a later version of spark_ckpt.",
        "Upgrade spark_ckpt, or install an older version of the connector.",
    ),
    "CKPT_ENVIRONMENT_UNFIT": ErrorCause(
        "Java, PySpark, Python on the workers, or a jar is missing or of a version that does not fit.",
        "`spark-ckpt doctor` lists what is installed and what is missing. Name jars before Java starts: "
        '`spark_ckpt.session(name, "kafka")`, or `--jars "$(spark-ckpt jars kafka)"`.',
    ),
}

_STORES: Mapping[str, ErrorCause] = {
    "CKPT_STORE_OUTAGE": ErrorCause(
        "The store, or a disk that the job needs, did not serve a request.",
        f"Look at the place that the message names. {_OUTAGE}",
    ),
    "CKPT_STORE_UNREACHABLE": ErrorCause(
        "The location is not mounted, the network or the object store does not answer, or its credentials are wrong.",
        f"Try the location from this host with another tool; `spark-ckpt doctor --store STORE` writes and reads a "
        f"file. {_OUTAGE}",
    ),
    "CKPT_STORE_FULL": ErrorCause(
        "The file system has no space left, or the user's quota is used up.",
        f"Free space, or keep less: fewer `keep_epochs`, `spark-ckpt savepoint drop`. {_OUTAGE}",
    ),
    "CKPT_STORE_READ_ONLY": ErrorCause(
        "The file system is mounted read-only; Linux does that by itself after an error of the device.",
        f"Read the kernel's log for why it changed, then mount it writable. {_OUTAGE}",
    ),
    "CKPT_STORE_DENIED": ErrorCause(
        "The user that runs the job, or the credentials of the object store, may not read or write there.",
        f"Give the right to read, write, list and delete below the location. {_OUTAGE}",
    ),
    "CKPT_STORE_IO_FAILED": ErrorCause(
        "The device below the file system failed.",
        f"Read the kernel's log; `spark-ckpt verify STORE --deep` says which epochs are whole. {_OUTAGE}",
    ),
    "CKPT_STORE_FOREIGN": ErrorCause(
        "The location holds another job's store, or files that are no store; often a path with a typo.",
        "Give the job a folder of its own; it creates it if there is none.",
    ),
    "CKPT_FORMAT_UNKNOWN": ErrorCause(
        "Another version of spark_ckpt, or a later version of Spark, wrote the data. The message names both formats.",
        "Upgrade spark_ckpt on this machine if the format is newer. All hosts of a job run one version. A store of an older "
        "format cannot be read: start the job on a new store.",
    ),
    "CKPT_STORE_IN_USE": ErrorCause(
        "Another driver holds the job's lease: it runs, or it died less than `lease` ago on another host.",
        "Stop the other driver, or wait until its lease ends (the message says when). `Job(..., takeover=True)` replaces it "
        "at once and fences it; `job.start(standby=True)` waits warm for its end.",
    ),
    "CKPT_FENCED": ErrorCause(
        "A newer incarnation runs the job, since this driver was silent for longer than `lease` or somebody took over.",
        "End this driver: the other one continues the job. If this is unexpected, look for two deployments of one job. "
        "Started with `job.start(standby=True)` it waits for the end of the other one.",
    ),
    "CKPT_HANDOVER_FAILED": ErrorCause(
        "No driver runs the job, no standby waits, or one of the two did not answer in time.",
        "`spark-ckpt lease STORE` shows who there is. Start a standby (`job.start(standby=True)`), then hand over.",
    ),
    "CKPT_EPOCH_NOT_FOUND": ErrorCause(
        "The epoch or savepoint was never taken, has another name, or retention has forgotten it.",
        "`spark-ckpt list STORE` lists the kept epochs. A savepoint keeps an epoch until it is dropped: "
        "`spark-ckpt savepoint add`.",
    ),
    "CKPT_EPOCH_DAMAGED": ErrorCause(
        "A file of the store was deleted, cut or altered by something else than the job: a clean-up script, a "
        "broken disk, a partial copy.",
        "`spark-ckpt verify STORE --deep` checks the files of each epoch. Restore an older epoch with `restore=`, or restore the "
        "folder from a backup "
        "(docs/backups.md).",
    ),
    "CKPT_LOG_DAMAGED": ErrorCause(
        "A file of a Delta table's own log is missing, empty or altered.",
        "For the epoch log see docs/backups.md. The next start re-creates logs of state tables. "
        "The owner of another table has to repair it.",
    ),
    "CKPT_SOURCE_SILENT": ErrorCause(
        "Before it commits an epoch, the job asks each source which topic, table or folder it is. A source did not answer, so the "
        "epoch was not committed.",
        "The job asks again in its next incarnation. If it ends, check that the brokers or the table can be reached, and start it.",
    ),
    "CKPT_SOURCE_UNDONE": ErrorCause(
        "The job whose edge this one reads was restored to an epoch before rows that this job has read already. They are in its "
        "state, and the sender will send other rows instead.",
        "Start this job with `restore=N`; the message names the newest epoch N that has read nothing of the undone rows. It "
        "continues from there on the sender's new branch. docs/edges-between-programs.md has an example.",
    ),
    "CKPT_START_OUT_OF_RANGE": ErrorCause(
        "`start` names an offset that the topic does not have: a position from another cluster or topic, or retention removed it.",
        "Give `start` an offset within the range that the message names, 'earliest' or 'latest', and start the job again.",
    ),
    "CKPT_IDENTITY_CHANGED": ErrorCause(
        "A source or sink has the name of an earlier one and is another table, topic or folder: a typo, or it was "
        "deleted and made again, also while the job ran. No committed epoch has rows of the other source.",
        "Correct the path, or confirm the change by name: `accept_new_sink`, `accept_new_source`, `accept_moved` "
        "(docs/changing.md). If a sink changed while the job ran, the message "
        "names the epoch to restore and the confirmation in one call.",
    ),
    "CKPT_SPARK_STATE_CHANGED": ErrorCause(
        "An epoch has the state of Spark's own operators (windows, `dropDuplicates`, joins, `transformWithState` inside "
        "`transform`), and the program has others now, in another order, or with other keys or values. Spark numbers its "
        "operators in the order of the plan.",
        "Run the program that wrote the state. For another one, restore an epoch before these operators, use a new store, or run "
        "the job once without them and confirm that their state may go: `accept_dropped_operator='spark operators'`.",
    ),
    "CKPT_SPARK_STATE_UNCAPTURED": ErrorCause(
        "Spark had deleted files of its state, or had not committed a batch, when an epoch was to name them: a disk of the "
        "checkpoint is full or very slow, or somebody removes files there.",
        "The job continues from its last epoch by itself. If it comes again, look at the disk of Spark's checkpoint (`run_dir`).",
    ),
    "CKPT_STATE_SCHEMA_CHANGED": ErrorCause(
        "The program declares another key or state schema than the one that the epoch's state was written with, or "
        "an operator is gone.",
        "Declare the old schema, with new state columns at its end or wider types if you like (docs/changing.md); give the "
        "changed operator a new name; or "
        "restore an epoch that has the new one.",
    ),
}

_RUNS: Mapping[str, ErrorCause] = {
    "CKPT_EPOCH_TIMED_OUT": ErrorCause(
        "The barrier's batch, the store or a sink took longer than `timeout`, or than a savepoint was waited for.",
        "Nothing is lost: the rows belong to the next epoch. Smaller batches (`maxOffsetsPerTrigger`, "
        "`maxFilesPerTrigger`) or a longer bound.",
    ),
    "CKPT_STOP_TIMED_OUT": ErrorCause(
        "A batch, the store or a sink took longer than a stop by SIGTERM or SIGINT may take: `stop_timeout`, by default three "
        "times the longest recent batch.",
        "Nothing is lost: the next start repeats what came after the last epoch. `Job(..., stop_timeout=...)` gives more time; "
        "the platform has to wait longer, too (docs/operations.md).",
    ),
    "CKPT_RUN_FAILED": ErrorCause(
        "More than `max_failed_epochs` incarnations in a row failed without a new epoch.",
        "The message has the last failure. Fix it, and start the job again. It continues from its last epoch.",
    ),
    "CKPT_WORKERS_NOT_STARTED": ErrorCause(
        "The host is so busy, or so short of memory, that a Python process of Spark's has not connected within 10 seconds (60 "
        "for a forked worker). Spark has no setting for this.",
        "Stop other programs on the host, or give the job fewer tasks at a time (`local[n]`, `spark.executor.cores`). On an idle "
        f"host, `spark-ckpt doctor` checks the workers' Python. {_OUTAGE}",
    ),
    "CKPT_QUERY_FAILED": ErrorCause(
        "Spark ended the streaming query: a lost executor, too little memory, an error inside Spark or a source.",
        "Read the reason in the message and Spark's log above it. What may pass by itself is tried again in a new "
        "incarnation.",
    ),
    "CKPT_JVM_GONE": ErrorCause(
        "Spark's Java process ended under the program: it was killed, often for lack of memory, or a signal went to "
        "the whole group.",
        "Start the program again; it continues from its last epoch. Look for the kernel's out-of-memory killer, and "
        "see docs/operations.md "
        "on signals.",
    ),
    "CKPT_USER_FUNCTION_FAILED": ErrorCause(
        "The function given to an operator raised an exception; the message has the key and the line.",
        "Fix the function and start again from the last epoch. If it wrote wrong state before, restore an older epoch.",
    ),
    "CKPT_USER_FUNCTION_HINDERED": ErrorCause(
        "The function given to an operator could not reach a service or a file, or had too little memory.",
        "See to what it needs.",
    ),
    "CKPT_EXPRESSION_FAILED": ErrorCause(
        "An expression cannot be computed for some row: a cast, an overflow, a division by zero.",
        "Use `try_cast`, `try_divide` or a filter in front of it; `stream.parse` sends records that do not fit to "
        "`rejectsTo`.",
    ),
    "CKPT_ARITHMETIC_OVERFLOW": ErrorCause(
        "A sum or count left the range of its type.",
        "Cast the column to a wider type (`decimal(38, s)`, `double`) in front of the operator, which then needs a "
        "new name.",
    ),
    "CKPT_ROWS_INVALID": ErrorCause(
        "One of the rows that an operator got or gave does not fit; the message says which key.",
        "Filter such rows before the operator, or fix the function that makes them.",
    ),
    "CKPT_OUTPUT_INVALID": ErrorCause(
        "A function returned rows or state with other columns or types than the declared ones.",
        "Return the columns of the schema in its order, or declare another schema.",
    ),
    "CKPT_BAD_RECORD": ErrorCause(
        "A record is not what its schema says, and the policy of `parse` or of the source is to fail.",
        "Fix the producer, or collect such records: `job.rejectsTo(sink)` and a policy that rejects.",
    ),
}

_ENDS: Mapping[str, ErrorCause] = {
    "CKPT_SOURCE_INVALID": ErrorCause(
        "The topic, table or folder is not there or not reachable, refuses the login, or has lost rows that the job "
        "has not read yet.",
        "The message says which. Rows that retention took are gone: restore a later epoch, or begin a new job; then "
        "raise the retention.",
    ),
    "CKPT_SINK_INVALID": ErrorCause(
        "The topic or table is not there or not reachable, refuses the login, or cannot take the job's columns.",
        "Create it or grant the rights, or select the columns that the message names.",
    ),
    "CKPT_ROWS_REFUSED": ErrorCause(
        "The table was altered while rows for it were staged (a column's type or name, a dropped column, the "
        "partitioning, `NOT NULL`), or the rows violate a constraint of the table. Or a topic's settings changed (compaction, "
        "`max.message.bytes`, bounds of times), or the job may not read them, and the topic never takes one of the records.",
        "Undo the change and start the job again: it publishes the staged rows. Or restore the epoch that the message "
        "names, with a job whose rows fit the table or topic.",
    ),
    "CKPT_PUBLISH_FAILED": ErrorCause(
        "The sink did not answer or refused a commit: a broker that restarts, a conflict with another writer, a "
        "lost connection.",
        "The rows are staged and stay so; see to the sink. After `publish_timeout` the run ends, and the next start "
        "publishes them.",
    ),
    "CKPT_PUBLISH_CONFLICT": ErrorCause(
        "The sink remembers another epoch than the log: the store or the table is an older backup, the table lost its "
        "newest commits, or two jobs share one sink.",
        "Bring back the newest store, or take the sink back to the epoch that the message names; docs/backups.md "
        "has the ways in order.",
    ),
}

_PLAIN_QUERIES: Mapping[str, ErrorCause] = {
    "CKPT_CHECKPOINT_FOREIGN": ErrorCause(
        "The folder is not a query's checkpoint, table or plan; often it is one level too high or too low.",
        "Name the folder that was given as `checkpointLocation`, or the table's own folder.",
    ),
    "CKPT_CHECKPOINT_UNREADABLE": ErrorCause(
        "The user may not read the checkpoint or table, it is not there, or its device fails.",
        "Grant the right to read, or run the command as the user of the query.",
    ),
    "CKPT_CHECKPOINT_DAMAGED": ErrorCause(
        "A file of the checkpoint is missing, empty or holds something else than Spark writes.",
        "Choose a target before the damage, or bring the checkpoint back from a copy.",
    ),
    "CKPT_QUERY_FOREIGN": ErrorCause(
        "The checkpoint of a query with an outbox was deleted or exchanged, so that Spark began a new query; or two queries "
        "share one outbox. Nothing was published, and no other driver was fenced.",
        "Bring the checkpoint back, or give each query an outbox of its own. A query that is to continue the outbox of another "
        "one is confirmed by its id: `out.start(writer, accept_query=...)`; docs/outbox.md says what comes again then.",
    ),
    "CKPT_BATCH_UNEXPECTED": ErrorCause(
        "A micro-batch does not continue the newest epoch of its query's outbox: the checkpoint was edited, a copy of it ran "
        "elsewhere, or the checkpoint or the outbox's store comes from an older backup.",
        "Bring checkpoint and store back to one moment, as the message says; `spark-ckpt rewind plan --outbox STORE` takes the "
        "query back to a batch that the outbox still has.",
    ),
    "CKPT_ADOPTION_REFUSED": ErrorCause(
        "The query has something that a job cannot continue, such as state of an operator that a job does not have, "
        "or an unfinished batch.",
        "Do what the message says (often: let the query finish its batch), or start a new job; "
        "docs/migrating.md lists the supported queries.",
    ),
    "CKPT_REWIND_OUT_OF_REACH": ErrorCause(
        "Nothing at or before the target is still kept by all queries and tables: `minBatchesToRetain`, VACUUM or "
        "log retention took it.",
        "Choose a later target. `spark-ckpt rewind pin` keeps points for longer than the queries do.",
    ),
    "CKPT_REWIND_STALE": ErrorCause(
        "A query ran or a table was written after the plan was made.",
        "Stop the queries, plan again, and apply the new plan.",
    ),
    "CKPT_REWIND_QUERY_RUNS": ErrorCause(
        "A query that the rewind rolls back is still running.",
        "Stop it, plan again, and apply that plan. Nothing was changed.",
    ),
    "CKPT_REWIND_UNDER_WAY": ErrorCause(
        "A rewind began and did not end: its process was killed, or it still runs.",
        "Run `spark-ckpt rewind apply` (or `undo`) with the same plan again. It continues where it stopped.",
    ),
    "CKPT_RESTORE_UNDER_WAY": ErrorCause(
        "A restore of several stores to one line began and did not end: its process was killed, or it still runs.",
        "Run the same `spark-ckpt restore STORE... --to LINE` again. It continues with the stores that are left.",
    ),
    "CKPT_REWIND_UNSUPPORTED": ErrorCause(
        "A table feature, a sink or a kind of start in the plan cannot be rolled back correctly.",
        "Restore that table yourself, or choose a target that does not touch it; docs/rewind.md lists the "
        "supported kinds.",
    ),
    "CKPT_REWIND_NOT_PERMITTED": ErrorCause(
        "The file system refuses to write or exchange folders: no rights, no room, something in the way, or not a "
        "local Linux file system.",
        "Grant rights or make room next to the checkpoints, and run the command again.",
    ),
    "CKPT_PINS_FOREIGN": ErrorCause(
        "The folder was not made by `spark-ckpt rewind pin`.",
        "Name the folder that points were pinned into.",
    ),
    "CKPT_PINS_IN_USE": ErrorCause(
        "Another `rewind pin` or `unpin` is at work in the folder.",
        "Wait until it is over, then run the command again.",
    ),
    "CKPT_PINS_OVER_BUDGET": ErrorCause(
        "The named points alone fill the folder's budget.",
        "Give up a named point with `spark-ckpt rewind unpin`, or raise the budget.",
    ),
    "CKPT_PIN_NOT_FOUND": ErrorCause(
        "There is no point of this name: a typo, or it was given up.",
        "`spark-ckpt rewind points` lists the pinned points.",
    ),
}

_TOOLS: Mapping[str, ErrorCause] = {
    "CKPT_TRACE_INVALID": ErrorCause(
        "The file is no recording of a job, was cut, or was made by a later version.",
        "Name a file or folder that a job with `trace_dir` has written, and read it with the version that wrote it.",
    ),
    "CKPT_PROTOCOL_CONDEMNED": ErrorCause(
        "A simulated run broke a promise of the protocol: a bug of spark_ckpt.",
        "Report it with the command line and the seed, which repeat it.",
    ),
}

CAUSES: Mapping[str, ErrorCause] = {**_SETTINGS, **_STORES, **_RUNS, **_ENDS, **_PLAIN_QUERIES, **_TOOLS}
"""Causes by condition."""
