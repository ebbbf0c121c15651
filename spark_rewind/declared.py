"""What a user declares because no checkpoint says it: who writes a topic, a folder, a table under a name of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from spark_ckpt.errors import ConfigInvalid
from spark_rewind.reading import text_of

Name = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
_BYTES_MAX = 1_000_000
_HINT = "see docs/rewind.md for what such a file may hold"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TableWriter(_Part):
    """A query that writes a Delta table by other means than the Delta sink: in `foreachBatch`.

    `app_id`: what it gives as `txnAppId`, with its batch as `txnVersion`; left out if it gives none.
    """

    query: Name
    app_id: Name | None = None


class DeclaredTable(_Part):
    """A Delta table, and who writes it beside those whose transactions say so."""

    path: Name
    written_by: list[TableWriter] = []


class DeclaredTopic(_Part):
    """A Kafka topic and the queries that write it."""

    topic: Name
    written_by: list[Name] = Field(min_length=1)


class DeclaredFolder(_Part):
    """A folder that a query's file sink writes."""

    path: Name
    written_by: Name


class DeclaredEdge(_Part):
    """Whatever else one query writes and another reads. `over`: what people call it."""

    writer: Name
    reader: Name
    over: Name


class Declared(_Part):
    """The whole file. Queries are named as in the plan: by their folder's name, or by their id.

    `clock_skew_ms`: how far the clocks of drivers, and of producers, may be apart.
    `other_tables`: ids of Delta tables that are read, and that none of the queries writes. `other_folders`: folders of file
    sinks, likewise.
    """

    format: int = Field(default=1, ge=1, le=1)
    clock_skew_ms: int = Field(default=0, ge=0)
    tables: list[DeclaredTable] = []
    topics: list[DeclaredTopic] = []
    folders: list[DeclaredFolder] = []
    edges: list[DeclaredEdge] = []
    other_tables: list[Name] = []
    other_folders: list[Name] = []


def read_declared(path: Path) -> Declared:
    """A declaration from a YAML file. Raises `ConfigInvalid`, `CheckpointUnreadable`."""
    try:
        text = text_of(path)
    except FileNotFoundError:
        raise ConfigInvalid(f"there is no file {path}", hint=_HINT) from None
    if len(text) > _BYTES_MAX:
        raise ConfigInvalid(f"{path} has more than {_BYTES_MAX:,} characters", hint=_HINT)
    try:
        return Declared.model_validate(yaml.safe_load(text) or {})
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where is not None else ""
        raise ConfigInvalid(f"{path}{line} is not YAML", hint=_HINT) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigInvalid(f"{path}: {where}: {first['msg']}", hint=_HINT) from error
