"""Commands of `spark-ckpt` for plain Spark queries, registered by an entry point (`spark_ckpt.cli.verbs`)."""

from __future__ import annotations

from spark_ckpt.cli.verbs import PLAIN, Verb

REWIND = Verb("rewind", "spark_rewind.cli.rewind", "app", "Take plain queries back together to one point.", PLAIN)
ADOPT = Verb("adopt", "spark_rewind.cli.adopt", "adopt", "Make a query's checkpoint a job's first epoch.", PLAIN)
