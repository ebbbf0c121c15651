"""Settings of a Python data source as options of a Spark reader."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Self

_SETTINGS = "settings"
_SECRET = "secret_storage_options"  # noqa: S105 - the name of an option
"""Spark shows the options of a plan, except values of options whose name contains `secret`."""


@dataclass(frozen=True, slots=True)
class ReaderSettings:
    """Base of a reader's settings, besides schema and position; a subclass adds fields of JSON values.

    `storage_options` may hold credentials and is never shown.
    """

    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False, kw_only=True)

    def options(self) -> dict[str, str]:
        """Return the settings as options of a Spark reader."""
        visible = asdict(self)
        secret = visible.pop("storage_options")
        return {_SETTINGS: json.dumps(visible), _SECRET: json.dumps(secret)}

    @classmethod
    def of_options(cls, options: Mapping[str, str]) -> Self:
        """Return the settings of reader options; the inverse of `options`."""
        return cls(**json.loads(options[_SETTINGS]), storage_options=json.loads(options[_SECRET]))
