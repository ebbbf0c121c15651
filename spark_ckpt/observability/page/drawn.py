"""The page as text: a shell that fetches its data, or one file with all data."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from spark_ckpt.connector import Json
from spark_ckpt.errors import EnvironmentUnfit

_ASSETS = files("spark_ckpt.observability.page") / "assets"


def asset(name: str) -> str:
    """Return the text of one of the page's files."""
    return (_ASSETS / name).read_text(encoding="utf-8")


def drawn(title: str, jobs: Sequence[Json] | None) -> str:
    """Return the page as HTML, with everything escaped. `jobs`: the data, or None for a page that requests it from its
    server.

    Raises `EnvironmentUnfit` without jinja2.
    """
    try:
        from jinja2 import Environment
    except ImportError as error:
        raise EnvironmentUnfit("the page needs the package jinja2", hint="pip install 'spark-ckpt[report]'") from error
    template = Environment(autoescape=True).from_string(asset("page.html"))
    return template.render(title=title, data=jobs, style=asset("page.css"), script=asset("page.js"))
