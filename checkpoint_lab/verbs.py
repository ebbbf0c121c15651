"""The lab's commands of `spark-ckpt`, registered by an entry point (`spark_ckpt.cli.verbs`)."""

from __future__ import annotations

from spark_ckpt.cli.verbs import Verb

SIMULATE = Verb(
    "simulate", "checkpoint_lab.cli.simulate", "simulate", "A protocol under failures, as a story and a diagram."
)
TRACE = Verb("trace", "checkpoint_lab.cli.trace", "trace", "What a job recorded: as a story, and replayed.")
COMPARE = Verb("compare", "checkpoint_lab.cli.compare", "compare", "What each protocol costs on one workload.")
