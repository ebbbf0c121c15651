"""The topics of a source: given by name, or all that match a pattern."""

from __future__ import annotations

import re
from collections.abc import Sequence

from spark_ckpt.errors import ConfigInvalid, SourceInvalid
from spark_ckpt_kafka.control import Control


class Subscription:
    """`named` topics, or those that match `pattern`. Raises `ConfigInvalid` for a pattern that is none."""

    def __init__(self, named: Sequence[str], pattern: str | None) -> None:
        self._named = list(named)
        try:
            self._pattern = re.compile(pattern) if pattern else None
        except re.error as error:
            raise ConfigInvalid(f"{pattern!r} is not a regular expression: {error}") from error

    def __str__(self) -> str:
        return self._pattern.pattern if self._pattern else ",".join(self._named)

    def names(self, control: Control) -> list[str]:
        """The topics that there are now. Raises `SourceInvalid` if none matches."""
        if self._pattern is None:
            return self._named
        names = [name for name in control.topics() if self._pattern.fullmatch(name)]
        if not names:
            raise SourceInvalid(f"no topic matches {self._pattern.pattern!r}", hint="create one, or change the pattern")
        return names

    def partitions(self, control: Control) -> dict[str, list[int]]:
        """Partition numbers of each topic. Raises `ControlError` when a topic does not exist."""
        return control.partitions(self.names(control))

    def for_spark(self) -> dict[str, str]:
        """The option of Spark's reader."""
        return {"subscribePattern": str(self)} if self._pattern else {"subscribe": str(self)}
