"""All measurements in one run: `python -m benchmarks [--kafka]`, results to benchmarks/RESULTS.md.

Each measurement is a process of its own, so that one does not warm up, or fill, another's JVM.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).parent
_MODULES = ("per_key", "epochs", "restore", "operators", "driver_memory", "schedules")


def measured(module: str, *arguments: str) -> str:
    """The Markdown that a measurement prints."""
    command = [sys.executable, "-m", f"benchmarks.inside.{module}", *arguments]
    done = subprocess.run(command, cwd=HERE.parent, stdout=subprocess.PIPE, text=True, check=True)
    return "\n".join(line for line in done.stdout.splitlines() if line.startswith("|"))


def machine() -> str:
    """What it ran on."""
    versions = subprocess.run(["java", "-version"], stderr=subprocess.PIPE, text=True, check=True).stderr.splitlines()[
        0
    ]
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, {versions}; load before: {load}"


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kafka", action="store_true", help="start a broker and measure Kafka to Kafka too")
    parser.add_argument("--only", choices=[*_MODULES, "kafka_sum"], action="append")
    options = parser.parse_args()
    wanted = options.only or [*_MODULES, *(["kafka_sum"] if options.kafka else [])]
    parts = [f"Measured {datetime.now(UTC):%Y-%m-%d} on {machine()}. Compare within a table, not across machines."]
    with (
        tempfile.TemporaryDirectory() as name,
        _broker(Path(name)) if "kafka_sum" in wanted else nullcontext() as broker,
    ):
        for module in wanted:
            arguments = [broker.servers] if module == "kafka_sum" else []
            parts.append(measured(module, *arguments))
            print(parts[-1], flush=True)
    (HERE / "RESULTS.md").write_text("# Results\n\n" + "\n\n".join(parts) + "\n")


def _broker(folder: Path):
    from integration_tests.broker import running_broker

    return running_broker(folder)


if __name__ == "__main__":
    main()
