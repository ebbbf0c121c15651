"""The demo's command of `spark-ckpt`, registered by an entry point (`spark_ckpt.cli.verbs`)."""

from __future__ import annotations

from spark_ckpt.cli.verbs import PROTOCOLS, Verb

DEMO = Verb("demo", "spark_ckpt_demo.cli.demo", "demo", "See it work: kill, restart, proof, restore.", PROTOCOLS)
