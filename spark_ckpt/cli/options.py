"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from spark_ckpt.config import checked_duration_ms
from spark_ckpt.errors import ConfigInvalid

StoreUri = Annotated[str, typer.Argument(metavar="STORE", help="The store of a job or outbox: a folder or URL.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on stdout.")]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="NAME=VALUE",
        help="For object stores, as deltalake names them; may be repeated. Prefer environment variables for secrets.",
    ),
]


Interval = Annotated[int | None, typer.Option("--interval-ms", min=1, help="Take a checkpoint every so many ms.")]
Timeout = Annotated[int | None, typer.Option("--timeout-ms", min=1, help="Give up, or send again, after so many ms.")]
ProtocolOptions = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="An option of the protocol; may be repeated."),
]


def process_at(written: str, unit: str, example: str) -> tuple[str, int]:
    """Return process and number of a --crash option in the form PROCESS@NUMBER. Raises `ConfigInvalid`."""
    process, _, number = written.rpartition("@")
    if not process or not number.isdecimal():
        raise ConfigInvalid(f"--crash {written} is not PROCESS@{unit}", hint=f"write for example --crash {example}")
    return process, int(number)


def pairs(written: Sequence[str] | None, what: str) -> dict[str, str]:
    """Return NAME=VALUE options as a mapping. Raises `ConfigInvalid`, which never shows a value."""
    found: dict[str, str] = {}
    for number, each in enumerate(written or (), start=1):
        name, equals, value = each.partition("=")
        if not equals or not name.strip():
            raise ConfigInvalid(f"{what} number {number} is not NAME=VALUE", hint=f"write {what} NAME=VALUE")
        found[name.strip()] = value
    return found


def seconds_of(written: str, option: str) -> float:
    """Return the seconds of a duration such as "5m"; a plain number is seconds. Raises `ConfigInvalid`."""
    number = written.replace(".", "", 1).isdecimal()
    return checked_duration_ms(option, float(written) if number else written) / 1000
