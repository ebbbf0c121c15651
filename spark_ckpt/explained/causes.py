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
    "As soon as a retry succeeds, a running job continues from its last epoch. If none succeeds within `store_patience` "
    "(10 minutes), the run ends with this error: then start the job again. "
    '`run.lastProgress["outage"]` describes the outage.'
)

_SETTINGS: Mapping[str, ErrorCause] = {
    "CKPT_CONFIG_INVALID": ErrorCause(
        "A setting, a `spark.ckpt.*` key, an option of a connector or an argument of a command is misspelt, out of "
        "range, or contradicts another one.",
        "Use the name or value that the message proposes. docs/settings.md lists every setting, docs/connectors.md "
        "every option.",
    ),
    "CKPT_GRAPH_INVALID": ErrorCause(
        "The described job cannot run: it has no sink, two things have the same name, a feedback is not closed, or "
        "schemas do not fit. Or it lacks a source, an operator, or a sink that the newest epoch still needs.",
        "Change the program as the message says. To see the graph, call `job.explain()`.",
    ),
    "CKPT_NOT_HERE": ErrorCause(
        "The program calls a method that a Spark DataFrame has, but a stream of a job does not have.",
        "Use the replacement that the message names. docs/porting.md lists the replacement of each Spark call.",
    ),
    "CKPT_NAME_UNKNOWN": ErrorCause(
        "The program imports or uses a name that `spark_ckpt` or a connector's package does not have.",
        "Use the name that the message proposes. docs/api.md lists all names.",
    ),
    "CKPT_OPERATION_REFUSED": ErrorCause(
        "The operation needs something that an epoch does not contain. It keeps state between batches outside of the "
        "job's operators (an aggregate, a join, `dropDuplicates`), so the state would be lost at the next start. Or "
        "its input cannot be read again. Or it uses the name of the input file (`input_file_name()`), which Spark "
        "does not know here.",
        "Use the operator of a job that does the same: docs/operators.md lists them. To get the name of the input "
        "file, set `FilesSource(..., positions=True)`.",
    ),
    "CKPT_CONNECTOR_UNKNOWN": ErrorCause(
        "The name is misspelt, or the package that brings the connector is not installed.",
        "Use a name that `spark-ckpt connectors` lists, or install the connector's package. Kafka, Delta and files "
        "are part of spark_ckpt. Without its extra, a connector raises CKPT_ENVIRONMENT_UNFIT or CKPT_CONNECTOR_BROKEN.",
    ),
    "CKPT_CONNECTOR_BROKEN": ErrorCause(
        "The connector's package is incompletely installed, a package that it imports is missing, or it declares an "
        "object that is not a connector.",
        "Install the package again with its extra. If the error remains, report it to the authors of the connector.",
    ),
    "CKPT_CONNECTOR_TOO_NEW": ErrorCause(
        "The connector was written for a later version of spark_ckpt than the installed one.",
        "Upgrade spark_ckpt, or install an older version of the connector.",
    ),
    "CKPT_ENVIRONMENT_UNFIT": ErrorCause(
        "Java, PySpark, the workers' Python, or a jar is missing or has a version that spark_ckpt does not support.",
        "Run `spark-ckpt doctor`: it lists the installed and the missing parts. Jars must be known before Java "
        'starts: use `spark_ckpt.session(name, "kafka")`, or pass `--jars "$(spark-ckpt jars kafka)"` to '
        "`spark-submit`.",
    ),
}

_STORES: Mapping[str, ErrorCause] = {
    "CKPT_STORE_OUTAGE": ErrorCause(
        "A read or write failed in the store, or on a disk that the job needs.",
        f"Check the location that the message names. {_OUTAGE}",
    ),
    "CKPT_STORE_UNREACHABLE": ErrorCause(
        "The location is not mounted, the network or the object store does not answer, or the credentials are wrong.",
        "Run `spark-ckpt doctor --store STORE` on this host: it writes and reads a file. Then mount the location, or "
        f"repair the network or the credentials. {_OUTAGE}",
    ),
    "CKPT_STORE_FULL": ErrorCause(
        "The file system has no space left, or the user's quota is used up.",
        "Free space. To keep less in the store, lower `keep_epochs` and drop savepoints with `spark-ckpt savepoint "
        f"drop`. {_OUTAGE}",
    ),
    "CKPT_STORE_READ_ONLY": ErrorCause(
        "The file system is mounted read-only. Linux does this by itself after an error of the device.",
        f"Read the kernel's log (`dmesg`) to find the reason, then mount the file system writable. {_OUTAGE}",
    ),
    "CKPT_STORE_DENIED": ErrorCause(
        "The user that runs the job, or the credentials of the object store, lack a permission.",
        f"Grant the permission to read, write, list and delete below the location. {_OUTAGE}",
    ),
    "CKPT_STORE_IO_FAILED": ErrorCause(
        "The device below the file system failed.",
        "Read the kernel's log (`dmesg`) and repair the device. Then run `spark-ckpt verify STORE --deep`, which "
        f"lists the epochs with damaged files. {_OUTAGE}",
    ),
    "CKPT_STORE_FOREIGN": ErrorCause(
        "The location contains the store of another job, or files that are not a store. Often the path is misspelt, or the "
        "job was renamed. Or a job has adopted the query of an outbox, and the query was started again. Or the store has "
        "lost its folder `epochs`.",
        "Correct the path or the name, or give a new job a new folder. The job creates the folder. Do not start a query "
        "again that a job has adopted: the job continues it. If the store has lost its log, restore the folder `epochs` from a "
        "backup (docs/backups.md).",
    ),
    "CKPT_FORMAT_UNKNOWN": ErrorCause(
        "Another version of spark_ckpt, or a later version of Spark, wrote the data. The message names both formats.",
        "If the format is newer, upgrade spark_ckpt on this machine, so that all hosts of a job run the same version. "
        "If the format is older, this version cannot read the store: start the job with a new store.",
    ),
    "CKPT_STORE_IN_USE": ErrorCause(
        "Another driver holds the job's lease. It still runs, or it crashed on another host less than `lease` ago.",
        "Stop the other driver, or wait until its lease expires: the message names the time. To replace the other "
        "driver at once, start with `Job(..., takeover=True)`. To wait with a warm session, start with "
        "`job.start(standby=True)`.",
    ),
    "CKPT_FENCED": ErrorCause(
        "Another driver runs the job now. It became the driver because this one did not renew its lease in time, or "
        "because an operator asked for it.",
        "Let this driver end: the other one continues the job. If you did not expect a second driver, look for a "
        "second deployment of the job. To keep a second driver as a reserve, start it with `job.start(standby=True)`.",
    ),
    "CKPT_HANDOVER_FAILED": ErrorCause(
        "No driver runs the job, no standby waits, or one of them failed or did not answer in time.",
        "Run `spark-ckpt lease STORE` to see the driver and the standbys. Start a standby with "
        "`job.start(standby=True)`, then hand over again.",
    ),
    "CKPT_EPOCH_NOT_FOUND": ErrorCause(
        "The epoch or savepoint never existed, has another name, or was deleted by retention.",
        "Choose one of the kept epochs: `spark-ckpt list STORE` lists them. To keep an epoch in future, add a "
        "savepoint with `spark-ckpt savepoint add`.",
    ),
    "CKPT_EPOCH_DAMAGED": ErrorCause(
        "A program other than the job deleted, cut or altered a file of the store: a clean-up script, a broken disk, "
        "a partial copy.",
        "Run `spark-ckpt verify STORE --deep` to find the epochs with intact files. Then start the job with "
        "`restore=` and one of them, or restore the folder from a backup (docs/backups.md).",
    ),
    "CKPT_LOG_DAMAGED": ErrorCause(
        "A file of a Delta table's log is missing, empty or altered.",
        "If it is the epoch log, follow docs/backups.md. If it is the log of a state table, start the job again: the "
        "start re-creates the log. If it is another table, its owner has to repair it.",
    ),
    "CKPT_SOURCE_SILENT": ErrorCause(
        "A start asks each source for its end, and each commit for the identity of its topic, table or folder. A "
        "source did not answer, so the job did not start, or did not commit the epoch. Or the newest entry of a Delta "
        "table's log is half written, as while a program copies the table. Or `spark-ckpt rewind` has committed to the "
        "table only a part of its versions. Or a file of a Delta table or of an object store cannot be read.",
        "Check that the brokers or the table can be reached. If the message names a rewind whose command has died, run "
        "`spark-ckpt rewind apply` or `undo` with its plan again. If it names a damaged file, restore the file from a "
        "backup. A running job asks again by itself in its next incarnation. If the job has ended, start it again.",
    ),
    "CKPT_SOURCE_UNDONE": ErrorCause(
        "This job reads an edge of another job. The other job restored an epoch before rows that this job has already "
        "read. These rows are in the state of this job, but the sender will send other rows instead.",
        "Start this job with `restore=N`. The message names N, the newest epoch without undone rows. The job then "
        "reads the rows that the sender has sent since its restore. docs/edges-between-programs.md has an example.",
    ),
    "CKPT_ROWS_LOST": ErrorCause(
        "While the job did not run, or restored an older epoch, its source lost rows that the job has not read: Kafka's "
        "retention, Delta's log cleanup or VACUUM deleted them, or a broker that lacked them became the leader.",
        "If a later epoch has read past them, restore it. Otherwise continue without them: the message has the call with "
        "`accept_lost_rows`. The job keeps its state, and the source continues at its first row behind the lost ones. "
        "Then raise the retention (docs/changing.md).",
    ),
    "CKPT_START_OUT_OF_RANGE": ErrorCause(
        "`start` names an offset that the topic does not have. The offset is of another cluster or topic, or "
        "retention has deleted it.",
        "Set `start` to an offset in the range that the message names, or to 'earliest' or 'latest'. Then start the "
        "job again. A source that an epoch has read continues from there and does not use `start`.",
    ),
    "CKPT_IDENTITY_CHANGED": ErrorCause(
        "A source or sink has its old name, but another table, topic or folder: the path is misspelt, or the table or "
        "topic was deleted and created again, possibly while the job ran. No committed epoch has rows of the other "
        "source.",
        "If the change is a mistake, correct the path. If it is intended, confirm it by name with `accept_new_sink`, "
        "`accept_new_source` or `accept_moved` (docs/changing.md). If a sink changed while the job ran, the message "
        "contains the call with the epoch to restore and the confirmation.",
    ),
    "CKPT_SPARK_STATE_CHANGED": ErrorCause(
        "The epoch has state of Spark's own operators (windows, `dropDuplicates`, joins, `transformWithState` inside "
        "`transform`). The program now has other such operators, another order of them, or other keys or values. "
        "Spark finds their state by their order in the plan, so it would load wrong state.",
        "Run the program that wrote the state. To run another program, restore an epoch before these operators, or "
        "use a new store. To drop the state, run the job once without these operators and with "
        "`accept_dropped_operator='spark operators'`.",
    ),
    "CKPT_SPARK_STATE_UNCAPTURED": ErrorCause(
        "The job could not copy Spark's state into an epoch, because Spark had deleted the files or had not committed "
        "the batch. Either a disk of Spark's checkpoint is full or very slow, or another program deletes files there.",
        "Do nothing the first time: the job continues from its last epoch by itself. If the error repeats, check the "
        "disk of Spark's checkpoint (`run_dir`).",
    ),
    "CKPT_STATE_SCHEMA_CHANGED": ErrorCause(
        "The program declares another key or another state schema than the epoch has, or other columns of an edge that "
        "has rows in flight.",
        "Declare the old schema. You may add state columns at its end or use wider types (docs/changing.md). Or give "
        "the changed operator a new name, so that it begins with empty state, and drop the old state with "
        "`accept_dropped_operator='OLD_NAME'`. Or restore an epoch that has the new schema.",
    ),
}

_RUNS: Mapping[str, ErrorCause] = {
    "CKPT_EPOCH_TIMED_OUT": ErrorCause(
        "The batch of the barrier, the store or a sink took longer than `timeout`. Or a savepoint was not complete "
        "within the time that its caller waited.",
        "No row is lost: the rows become part of the next epoch. If the error repeats, make batches smaller "
        "(`maxOffsetsPerTrigger`, `maxFilesPerTrigger`), or raise `timeout`.",
    ),
    "CKPT_STOP_TIMED_OUT": ErrorCause(
        "After SIGTERM or SIGINT, a batch, the store or a sink took longer than `stop_timeout`. The default of "
        "`stop_timeout` is three times the longest recent batch.",
        "No row is lost: start the job again, and it repeats the input after the last epoch. To avoid the error, "
        "raise `stop_timeout`, and let the platform wait longer before it kills the job (docs/operations.md).",
    ),
    "CKPT_DRAIN_STOPPED": ErrorCause(
        "The program got SIGTERM or SIGINT, or was asked to hand over to a standby, while a run with `availableNow=True` read "
        "the available input. The run took its final epoch and ended. What follows in the program would have worked on a part of "
        "the input.",
        "No row is lost: start the job again, and it continues after its newest epoch; after a handover the standby does. If a "
        "time limit of the platform sent the signal, raise the limit. A program that can work on a part of the input catches the "
        "error; after SIGTERM it can start no other run with `availableNow=True`.",
    ),
    "CKPT_RUN_FAILED": ErrorCause(
        "More than `max_failed_epochs` incarnations in a row failed, and no epoch was committed between them.",
        "The message contains the last failure. Fix its cause, and start the job again. The job continues from its "
        "last epoch.",
    ),
    "CKPT_WORKERS_NOT_STARTED": ErrorCause(
        "A Python process of Spark did not connect within 10 seconds (60 for a forked worker), because the host is "
        "too busy or has too little memory. Spark has no setting for this time.",
        "Stop other programs on the host, or give the job fewer tasks at a time (`local[n]`, `spark.executor.cores`). "
        f"If the host is idle, run `spark-ckpt doctor`, which checks the workers' Python. {_OUTAGE}",
    ),
    "CKPT_QUERY_FAILED": ErrorCause(
        "Spark ended the streaming query: an executor was lost, memory was short, or Spark or a source raised an "
        "error.",
        "Read the reason in the message, and Spark's log before it. If the failure may be temporary, the job starts a "
        "new incarnation by itself. Otherwise fix the cause and start the job again.",
    ),
    "CKPT_JVM_GONE": ErrorCause(
        "Spark's Java process ended while the program ran. Often the kernel killed it for lack of memory, or a signal "
        "went to the whole process group.",
        "Start the program again: it continues from its last epoch. If the kernel's log has an out-of-memory kill, "
        "give Java less memory or the host more. docs/operations.md describes signals.",
    ),
    "CKPT_SESSION_STOPPED": ErrorCause(
        "The program called `spark.stop()` while the job ran, or a cluster ended the application.",
        "Call `run.stop()` before `spark.stop()`. To continue, make a session and start the job again: it continues from "
        "its last epoch.",
    ),
    "CKPT_USER_FUNCTION_FAILED": ErrorCause(
        "The function of an operator raised an exception. The message contains the key, and the line of the function.",
        "Fix the function and start the job again: it continues from the last epoch. If the function wrote wrong "
        "state before it failed, restore an older epoch.",
    ),
    "CKPT_USER_FUNCTION_HINDERED": ErrorCause(
        "The function of an operator could not reach a service or a file, or had too little memory.",
        "Make the service or file available, or give the tasks more memory. The job continues from its last epoch, so "
        "no row is lost.",
    ),
    "CKPT_EXPRESSION_FAILED": ErrorCause(
        "Spark could not compute an expression for a row: a failed cast, an overflow, a division by zero.",
        "Use `try_cast` or `try_divide`, or filter such rows before the expression. `stream.parse` sends records that "
        "do not fit to `rejectsTo`.",
    ),
    "CKPT_ARITHMETIC_OVERFLOW": ErrorCause(
        "A sum or a count became larger than its type allows.",
        "Cast the column to the type that the message names, before the operator: the state widens, and the job keeps it. A "
        "`double`, or a decimal with fewer digits after the point, is another state: give the operator a new name, and "
        "drop the old state with `accept_dropped_operator`.",
    ),
    "CKPT_ROWS_INVALID": ErrorCause(
        "An operator received or returned a row that does not fit. The message names the key.",
        "Filter such rows before the operator, or fix the function that returns them.",
    ),
    "CKPT_OUTPUT_INVALID": ErrorCause(
        "A function returned rows or state with other columns or types than the declared ones.",
        "Return the declared columns in the declared order, or change the declared schema.",
    ),
    "CKPT_BAD_RECORD": ErrorCause(
        "A record does not fit its schema, and the source or `parse` is set to fail at such records.",
        "Fix the producer. To continue without such records, collect them with `job.rejectsTo(sink)` and set the "
        "policy to one that does not fail.",
    ),
}

_ENDS: Mapping[str, ErrorCause] = {
    "CKPT_SOURCE_INVALID": ErrorCause(
        "The topic, table or folder does not exist, cannot be reached, or refuses the login. Or the job is to begin "
        "inside an open transaction of a topic. The message names the case.",
        "Create the topic, table or folder, or correct its name or login. If a transaction is open, wait until it has "
        "ended.",
    ),
    "CKPT_SINK_INVALID": ErrorCause(
        "The topic or table does not exist, cannot be reached, refuses the login, or cannot store the job's columns.",
        "Create the topic or table, or grant the permission. If the columns do not fit, select the columns that the "
        "message names.",
    ),
    "CKPT_ROWS_REFUSED": ErrorCause(
        "The sink cannot store rows of a committed epoch. The table changed after the rows were written to files (a "
        "column's type or name, a dropped column, the partitioning, `NOT NULL`), or the rows violate a constraint of "
        "the table. Or the topic's settings changed (compaction, `max.message.bytes`, bounds of timestamps), or the "
        "job lacks the permission to read them, and the topic rejects a record.",
        "Undo the change and start the job again: the start publishes the rows. Or change the program so that its "
        "rows fit, and start it with the `restore=` that the message names.",
    ),
    "CKPT_PUBLISH_FAILED": ErrorCause(
        "The sink did not answer or refused a commit: a broker restarts, another writer caused a conflict, or the "
        "connection was lost.",
        "Repair the sink. No row is lost: the rows are in the store, and the job retries for `publish_timeout`. If "
        "the job has ended, start it again, and the start publishes the rows.",
    ),
    "CKPT_PUBLISH_CONFLICT": ErrorCause(
        "The marker in the sink does not fit the epoch log. The store or the table is an older backup, the table lost "
        "its newest commits, or two jobs share one sink.",
        "Restore the newest backup of the store, or bring the sink back to the epoch that the message names. "
        "docs/backups.md describes each case.",
    ),
}

_PLAIN_QUERIES: Mapping[str, ErrorCause] = {
    "CKPT_CHECKPOINT_FOREIGN": ErrorCause(
        "The folder is not a checkpoint, a table or a plan. Often the path is one level too high or too low.",
        "Pass the folder that the query has as `checkpointLocation`, or the folder of the table.",
    ),
    "CKPT_CHECKPOINT_UNREADABLE": ErrorCause(
        "The checkpoint or table does not exist, its device fails, or the user has no permission to read it.",
        "Grant the permission, or run the command as the user of the query.",
    ),
    "CKPT_CHECKPOINT_DAMAGED": ErrorCause(
        "A file of the checkpoint is missing or empty, or has content that Spark does not write.",
        "Choose a target before the damage, or restore the checkpoint from a copy.",
    ),
    "CKPT_QUERY_FOREIGN": ErrorCause(
        "The checkpoint of a query with an outbox was deleted or replaced, so that Spark began a new query. Or two "
        "queries share one outbox. The outbox published nothing and fenced no other driver.",
        "Restore the checkpoint, or give each query its own outbox. If the new query is to continue the outbox, "
        "confirm the query's id with `out.start(writer, accept_query=...)`. docs/outbox.md lists the rows that are "
        "published again then.",
    ),
    "CKPT_BATCH_UNEXPECTED": ErrorCause(
        "A micro-batch does not follow the newest epoch of the query's outbox. The checkpoint was edited, a copy of "
        "it ran elsewhere, or the checkpoint or the outbox's store is an older backup.",
        "Restore checkpoint and store to the same point in time, as the message says. To roll the query back to a "
        "batch that the outbox still has, use `spark-ckpt rewind plan --outbox STORE`.",
    ),
    "CKPT_ADOPTION_REFUSED": ErrorCause(
        "The query has something that a job cannot continue, for example an unfinished batch, or state of an operator "
        "that jobs do not have.",
        "Follow the message: often you have to let the query finish its batch. If the query is not supported, start a "
        "new job. docs/migrating.md lists the supported queries.",
    ),
    "CKPT_REWIND_OUT_OF_REACH": ErrorCause(
        "No point at or before the target is kept by all queries and tables. `minBatchesToRetain`, VACUUM or the "
        "retention of a log deleted a part of it.",
        "Choose a later target. To keep points for longer than the queries do, run `spark-ckpt rewind pin` regularly.",
    ),
    "CKPT_REWIND_STALE": ErrorCause(
        "A query ran or a table was written after the plan was made, or after the rewind that `undo` is to revert.",
        "Stop the queries, make a new plan, and apply the new plan. An undo stays refused: it would lose the work "
        "since the rewind.",
    ),
    "CKPT_REWIND_QUERY_RUNS": ErrorCause(
        "A query that the rewind rolls back is still running. The rewind changed nothing.",
        "Stop the query, make a new plan, and apply it.",
    ),
    "CKPT_REWIND_UNDER_WAY": ErrorCause(
        "A rewind began and has not ended: its process was killed, or it still runs.",
        "If the process still runs, wait for it. Otherwise run `spark-ckpt rewind apply` (or `undo`) with the same "
        "plan again: it continues where it stopped. If the plan is lost, take its copy: `.spark-ckpt-rewind/ID/plan.json` "
        "next to the first checkpoint.",
    ),
    "CKPT_RESTORE_UNDER_WAY": ErrorCause(
        "A restore of several stores to one line began and has not ended: its process was killed, or it still runs.",
        "If the process still runs, wait for it. Otherwise run the same `spark-ckpt restore STORE... --to LINE` "
        "again: it continues with the remaining stores.",
    ),
    "CKPT_REWIND_UNSUPPORTED": ErrorCause(
        "The plan contains a table feature, a sink or a kind of start that a rewind cannot roll back correctly.",
        "Restore this table yourself, or choose a target that does not affect it. docs/rewind.md lists the supported "
        "kinds.",
    ),
    "CKPT_REWIND_NOT_PERMITTED": ErrorCause(
        "The file system does not let the rewind write or exchange folders: a permission or space is missing, another "
        "file has the name, or it is not a local Linux file system.",
        "Grant the permission, or free space next to the checkpoints. Then run the command again.",
    ),
    "CKPT_PINS_FOREIGN": ErrorCause(
        "The folder was not created by `spark-ckpt rewind pin`.",
        "Pass the folder that you gave to `rewind pin` as `--into`.",
    ),
    "CKPT_PINS_IN_USE": ErrorCause(
        "Another `rewind pin` or `unpin` is changing the folder.",
        "Wait until it ends, then run the command again.",
    ),
    "CKPT_PINS_OVER_BUDGET": ErrorCause(
        "The points with a name fill the folder's budget, so the new point does not fit. `rewind pin` never deletes "
        "points with a name.",
        "Delete a named point with `spark-ckpt rewind unpin`, or raise the budget.",
    ),
    "CKPT_PIN_NOT_FOUND": ErrorCause(
        "No pinned point has this name: the name is misspelt, or the point was deleted.",
        "Run `spark-ckpt rewind points` to list the pinned points.",
    ),
}

_TOOLS: Mapping[str, ErrorCause] = {
    "CKPT_TRACE_INVALID": ErrorCause(
        "The file is not the recording of a job, is cut, or was written by a later version.",
        "Pass a file or folder that a job with `trace_dir` has written. Read it with the version that wrote it.",
    ),
    "CKPT_PROTOCOL_CONDEMNED": ErrorCause(
        "A simulated run violated a guarantee of the protocol: this is a bug of spark_ckpt.",
        "Report the bug with the command line and the seed: they repeat the run.",
    ),
}

CAUSES: Mapping[str, ErrorCause] = {**_SETTINGS, **_STORES, **_RUNS, **_ENDS, **_PLAIN_QUERIES, **_TOOLS}
"""Causes by condition."""
