"""The topics of a source: named, or all that match a pattern."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence

from spark_ckpt.errors import ConfigInvalid, SourceInvalid
from spark_ckpt_kafka.control import Control


class Subscription:
    """Topics by name, or those that match `pattern`. Raises `ConfigInvalid` for an invalid pattern."""

    def __init__(self, named: Sequence[str], pattern: str | None) -> None:
        self._named = list(named)
        self._pattern = _compiled(pattern) if pattern else None

    def __str__(self) -> str:
        return self._pattern.pattern if self._pattern else ",".join(self._named)

    def names(self, control: Control) -> list[str]:
        """Return the current topics. Raises `SourceInvalid` if none matches."""
        if self._pattern is None:
            return self._named
        names = [name for name in control.topics() if self._pattern.fullmatch(name)]
        if not names:
            raise SourceInvalid(f"no topic matches {self._pattern.pattern!r}", hint="create one, or change the pattern")
        return names

    def partitions(self, control: Control) -> dict[str, list[int]]:
        """Return the partition numbers of each topic. Raises `ControlError` for a topic that does not exist."""
        return control.partitions(self.names(control))

    def for_spark(self) -> dict[str, str]:
        """Return the option of Spark's reader."""
        return {"subscribePattern": str(self)} if self._pattern else {"subscribe": str(self)}


def _compiled(pattern: str) -> re.Pattern[str]:
    """Return the pattern if Java, which matches topics for Spark, reads it in the same way. Raises `ConfigInvalid`."""
    try:
        with warnings.catch_warnings():
            # Warns of nested and intersected classes (`[a-z&&[^b]]`), which Python reads as plain characters.
            warnings.simplefilter("error", FutureWarning)
            compiled = re.compile(pattern)
    except (re.error, FutureWarning) as error:
        raise ConfigInvalid(
            f"{pattern!r} is not a regular expression that Python and Java read alike: {error}",
            hint="write the pattern without nested classes, or give the topics by name",
        ) from error
    if "(?P" in pattern:
        raise ConfigInvalid(
            f"{pattern!r} has a named group in Python's spelling, which Java does not know",
            hint="use a group without a name",
        )
    return compiled
