"""`spark-ckpt doctor`: check everything that a job needs, and show the next step for each problem."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from spark_ckpt.cli.broker_check import broker_findings, read_properties
from spark_ckpt.cli.checks import Finding, machine
from spark_ckpt.cli.options import AsJson, StorageOptions, pairs
from spark_ckpt.cli.output import print_json, print_line
from spark_ckpt.cli.store_check import store_findings
from spark_ckpt.errors import EnvironmentUnfit
from spark_ckpt.json_values import plain


def doctor(
    store: Annotated[str | None, typer.Option(help="Check this store too: a folder or an object-store URL.")] = None,
    kafka: Annotated[str | None, typer.Option(metavar="SERVERS", help="Check this Kafka cluster too.")] = None,
    command_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Kafka's client settings, NAME=VALUE lines (security).")
    ] = None,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Check Java, PySpark, packages and jars, a store, a Kafka cluster. Exit code 10 if something fails."""
    options, properties = pairs(storage_option, "--storage-option"), read_properties(command_config)
    found: list[Finding] = []
    for finding in _findings(store, options, kafka, properties):
        found.append(finding)
        if not as_json:
            _print(finding)
    failed = sum(each.status == "fail" for each in found)
    if as_json:
        print_json({"healthy": not failed, "findings": [plain(asdict(each)) for each in found]})
    else:
        warned = sum(each.status == "warn" for each in found)
        print_line(f"\n{len(found) - failed - warned} ok, {warned} warnings, {failed} failed")
    if failed:
        raise typer.Exit(EnvironmentUnfit.exit_code)


def _findings(
    store: str | None, options: dict[str, str], kafka: str | None, properties: dict[str, str]
) -> Iterator[Finding]:
    yield from machine()
    if store is not None:
        yield from store_findings(store, options)
    if kafka is not None:
        yield from broker_findings(kafka, properties)


def _print(finding: Finding) -> None:
    print_line(f"{finding.status.ljust(4)}  {finding.check.ljust(18)}  {finding.detail}")
    if finding.next:
        print_line(f"{' ' * 26}next: {finding.next}")
