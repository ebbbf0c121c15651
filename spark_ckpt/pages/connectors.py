"""The page of sources and sinks, generated from their docstrings. `python -m spark_ckpt.pages.connectors` prints it.

Connectors are found by their entry points, like a user's own.
"""

from __future__ import annotations

import inspect
import sys

from spark_ckpt.connectors import Installed, named, names

_HEAD = """# Sources and sinks

This page lists the parameters of each source and sink. Pass a source to `job.source(name, source)`, and a sink to
`stream.to(sink)`. `spark-ckpt connectors` lists the installed connectors and their guarantees. To connect another system, read
[Write a connector](writing-a-connector.md).
"""


def connectors_page() -> str:
    """Return the text of `docs/connectors.md`."""
    return "\n".join([_HEAD, *(section for name in names() for section in _sections(named(name)))])


def _sections(found: Installed) -> list[str]:
    classes: list[type] = [*found.sources(), *found.sinks()]
    jars = (
        f'If a feature needs jars, start the session with `spark_ckpt.session(name, "{found.name}")`.\n'
        if found.connector.jars
        else "This connector needs no jars.\n"
    )
    return [*(_section(found.module, each) for each in classes), jars]


def _section(package: str, described: type) -> str:
    name = described.__name__
    signature = inspect.signature(described)
    call = ",\n    ".join(_parameter(each) for each in signature.parameters.values())
    text = inspect.getdoc(described) or ""
    return f"## {name}\n\n```text\nfrom {package} import {name}\n\n{name}(\n    {call},\n)\n```\n\n{text}\n"


def _parameter(parameter: inspect.Parameter) -> str:
    """Return a parameter as a user writes it: name, type, default. A default that is a new object is shown as `...`."""
    typed = f"{parameter.name}: {str(parameter.annotation).replace(chr(39), chr(34))}"
    if parameter.default is inspect.Parameter.empty:
        return typed
    default = repr(parameter.default)
    return f"{typed} = {'...' if default == '<factory>' else default}"


if __name__ == "__main__":
    sys.stdout.write(connectors_page())
