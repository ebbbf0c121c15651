"""The reference page of all settings, generated from the model. `python -m spark_ckpt.pages.settings` prints it."""

from __future__ import annotations

import re
import sys

from pydantic.fields import FieldInfo

from spark_ckpt.config import CONF_PREFIX, JobConfig

_HEAD = """# Settings

Pass a setting as an argument of `Job(spark, name, store=..., ...)`, or set it as a conf key of the Spark session. If you do both,
the argument wins. The conf key is `spark.ckpt.` and the name with dots: `spark.ckpt.publish.timeout` for `publish_timeout`. Write a
duration as a string (`5 seconds`, `200 ms`, `2m`), or in an argument as a number of seconds. `Job` raises `CKPT_CONFIG_INVALID` for
an unknown key and proposes the right name.

| argument | default | meaning |
|---|---|---|"""
_DEFAULT = re.compile(r"; default:? (.*)$")
_PAGE = re.compile(r"`docs/([\w-]+)\.md`")


def settings_page() -> str:
    """Return the text of `docs/settings.md`."""
    return "\n".join([_HEAD, *(_row(name, field) for name, field in JobConfig.model_fields.items())]) + "\n"


def conf_keys() -> list[str]:
    """Return the conf key of each setting, as the page's rule builds it."""
    return [f"{CONF_PREFIX}{(field.alias or name).replace('_', '.')}" for name, field in JobConfig.model_fields.items()]


def _row(name: str, field: FieldInfo) -> str:
    description = field.description or ""
    written = _DEFAULT.search(description)
    default = written[1] if written else _shown(field.default)
    meaning = _PAGE.sub(r"[\1](\1.md)", _DEFAULT.sub("", description))
    return f"| `{field.alias or name}` | {default} | {meaning} |"


def _shown(default: object) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return f"{default:,}" if isinstance(default, int) else "none"


if __name__ == "__main__":
    sys.stdout.write(settings_page())
