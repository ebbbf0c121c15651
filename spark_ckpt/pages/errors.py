"""The reference page of all errors, generated from their classes. `python -m spark_ckpt.pages.errors` prints it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from spark_ckpt.explained.explanation import Explanation, conditions, explanation_of

_HEAD = """# Errors

Every error that spark_ckpt raises on purpose has a condition in Spark's style. Its message says what happened, to which epoch,
table and operator, and what to do next. This page lists the usual cause and the cure of each condition. The command line prints
them, too:

```
spark-ckpt explain CKPT_EPOCH_DAMAGED
```

`spark-ckpt` ends with the exit code of the error. Your program can do the same: pass `error.exit_code` to `sys.exit`.
"""


def errors_page() -> str:
    """Return the text of `docs/errors.md`."""
    return "\n".join([_HEAD, *(line for kind in conditions().values() for line in _entry(explanation_of(kind)))])


def _entry(told: Explanation) -> Iterator[str]:
    home = "spark_ckpt.errors." if told.condition in _in_the_tree() else ""
    yield f"## {told.condition}\n"
    yield f"`{home}{told.name}`, exit code {told.exit_code}; {told.retry}. {told.meaning}\n"
    yield f"**Cause.** {_linked(told.cause)}\n"
    yield f"**Cure.** {_linked(told.cure)}\n"


def _in_the_tree() -> set[str]:
    """Return the conditions of the classes that programs import from `spark_ckpt.errors`."""
    return {condition for condition, kind in conditions().items() if kind.__module__ == "spark_ckpt.errors"}


def _linked(text: str) -> str:
    return re.sub(r"docs/([\w-]+)\.md", r"[\1](\1.md)", text)


if __name__ == "__main__":
    sys.stdout.write(errors_page())
