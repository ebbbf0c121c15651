"""The lab's commands of `spark-ckpt`, registered by an entry point (`spark_ckpt.cli.verbs`)."""

from __future__ import annotations

from spark_ckpt.cli.verbs import PROTOCOLS, Verb

SIMULATE = Verb(
    "simulate", "checkpoint_lab.cli.simulate", "simulate", "Run a protocol under failures, and judge it.", PROTOCOLS
)
TRACE = Verb("trace", "checkpoint_lab.cli.trace", "trace", "Tell and replay what a job recorded.", PROTOCOLS)
COMPARE = Verb("compare", "checkpoint_lab.cli.compare", "compare", "Compare the costs of all protocols.", PROTOCOLS)
