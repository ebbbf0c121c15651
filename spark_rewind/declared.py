"""Declarations by the user, for facts that no checkpoint holds.

They name the writers of topics, of folders, and of tables under a name of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.wording import complaint
from spark_rewind.reading import text_of

Name = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
_BYTES_MAX = 1_000_000
_HINT = "see docs/rewind.md for what such a file may hold"


class _DeclaredPart(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TableWriter(_DeclaredPart):
    """A query that writes a Delta table without the Delta sink: in `foreachBatch`.

    `app_id`: its `txnAppId`, with its batch as `txnVersion`; None for a query that sets neither.
    """

    query: Name
    app_id: Name | None = None


class DeclaredTable(_DeclaredPart):
    """A Delta table with its declared writers. Writers that the table's transactions name need no declaration."""

    path: Name
    written_by: list[TableWriter] = []


class DeclaredTopic(_DeclaredPart):
    """A Kafka topic with the queries that write it."""

    topic: Name
    written_by: list[Name] = Field(min_length=1)


class DeclaredFolder(_DeclaredPart):
    """A folder that a query's file sink writes."""

    path: Name
    written_by: Name


class DeclaredEdge(_DeclaredPart):
    """Any other medium that one query writes and another reads. `over`: its name."""

    writer: Name
    reader: Name
    over: Name


class Declared(_DeclaredPart):
    """The whole declaration file. Queries are named as in the plan: by their folder's name, or by their id.

    - `clock_skew_ms`: largest difference between clocks of drivers and producers.
    - `other_tables`: ids of Delta tables that the queries read and never write.
    - `other_folders`: folders of file sinks, likewise.
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
    """Read a declaration from a YAML file. Raises `ConfigInvalid`, `CheckpointUnreadable`."""
    try:
        text = text_of(path)
    except FileNotFoundError:
        raise ConfigInvalid(f"there is no file {path}", hint=_HINT) from None
    if len(text) > _BYTES_MAX:
        raise ConfigInvalid(f"{path} has more than {_BYTES_MAX:,} characters", hint=_HINT)
    try:
        # An empty file is null in YAML, and declares nothing.
        return Declared.model_validate(yaml.safe_load(text) or {})
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where is not None else ""
        raise ConfigInvalid(f"{path}{line} is not YAML", hint=_HINT) from error
    except ValidationError as error:
        raise ConfigInvalid(f"{path}: {complaint(error, 'the file')}", hint=_HINT) from error
