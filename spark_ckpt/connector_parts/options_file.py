"""Reads the options of a connector's command from a file, since a command line would show secrets to other users."""

from __future__ import annotations

import json
from pathlib import Path

from spark_ckpt.errors import ConfigInvalid

_HINT = 'write one JSON object of names and values, such as {"name": "value"}, and name it: --options-file FILE'


def read_options(path: Path | None) -> dict[str, str]:
    """Return the options of a file with one JSON object, as text; none without a file.

    Raises `ConfigInvalid`, which never shows a value.
    """
    if path is None:
        return {}
    try:
        options = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigInvalid(f"{path} cannot be read: {error.strerror or type(error).__name__}", hint=_HINT) from error
    # Not only malformed JSON: a text that is no UTF-8, too.
    except ValueError as error:
        where = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ConfigInvalid(f"{path} is no JSON text{where}", hint=_HINT) from error
    if not isinstance(options, dict):
        raise ConfigInvalid(f"{path} has no JSON object", hint=_HINT)
    return {name: _text(path, name, value) for name, value in options.items()}


def _text(path: Path, name: str, value: object) -> str:
    if value is None or isinstance(value, dict | list):
        raise ConfigInvalid(f"{path}: option {name} is no text, number, true or false", hint=_HINT)
    # Java's clients and object stores read "true", and Python would write "True".
    return str(value).lower() if isinstance(value, bool) else str(value)
