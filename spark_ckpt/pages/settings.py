"""The reference page of all settings, generated from the model. `python -m spark_ckpt.pages.settings` prints it."""

from __future__ import annotations

import sys

from spark_ckpt.config import CONF_PREFIX, JobConfig


def settings_page() -> str:
    """Return the text of `docs/settings.md`."""
    rows = [
        f"| `{field.alias or name}` | `{CONF_PREFIX}{(field.alias or name).replace('_', '.')}` | {field.description} |"
        for name, field in JobConfig.model_fields.items()
    ]
    head = [
        "# Settings",
        "",
        "Arguments of `Job(spark, name, store=..., ...)`, or conf keys of the session; arguments win.",
        "Durations are written as Spark writes them: `5 seconds`, `200 milliseconds`, `2 minutes`, or a number of seconds.",
        "An unknown key is refused when the job is made.",
        "",
        "| argument | conf key | meaning |",
        "|---|---|---|",
    ]
    return "\n".join([*head, *rows]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(settings_page())
