"""Commands of `spark-ckpt` for plain Spark queries, registered by an entry point (`spark_ckpt.cli.verbs`)."""

from __future__ import annotations

from spark_ckpt.cli.verbs import Verb

REWIND = Verb("rewind", "spark_rewind.cli.rewind", "app")
ADOPT = Verb("adopt", "spark_rewind.cli.adopt", "adopt", "A plain query's checkpoint as a job's first epoch.")
