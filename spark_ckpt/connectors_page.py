"""The page of sources and sinks, generated from their docstrings. `python -m spark_ckpt.connectors_page` prints it.

Connectors are found by their entry points, as a user's own would be.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points

_HEAD = """# Sources and sinks

What each takes, from its docstring. A source goes into `job.source(name, source)`, a sink into `stream.to(sink)`.
"""


def connectors_page() -> str:
    """`docs/connectors.md`."""
    return "\n".join([_HEAD, *(section for entry in _entries() for section in entry)])


def _entries() -> Iterator[list[str]]:
    for entry in sorted(entry_points(group="spark_ckpt.connectors"), key=lambda entry: entry.name):
        package = entry.load()
        classes = [getattr(package, name) for name in package.__all__]
        yield [_section(entry.value, each) for each in classes if inspect.isclass(each)]


def _section(package: str, described: type) -> str:
    name = described.__name__
    signature = inspect.signature(described)
    call = ",\n    ".join(_parameter(each) for each in signature.parameters.values())
    text = inspect.getdoc(described) or ""
    return f"## {name}\n\n```text\nfrom {package} import {name}\n\n{name}(\n    {call},\n)\n```\n\n{text}\n"


def _parameter(parameter: inspect.Parameter) -> str:
    """As the user writes it: name, type, default; an object that is made anew has no text worth showing."""
    typed = f"{parameter.name}: {str(parameter.annotation).replace(chr(39), chr(34))}"
    if parameter.default is inspect.Parameter.empty:
        return typed
    default = repr(parameter.default)
    return f"{typed} = {'...' if default == '<factory>' else default}"


if __name__ == "__main__":
    sys.stdout.write(connectors_page())
