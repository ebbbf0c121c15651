"""One ported program: a plain query, the job that replaces it, their input, and the lines that differ."""

from __future__ import annotations

import ast
import hashlib
import inspect
import random
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cached_property

from pyspark.sql import SparkSession

Program = Callable[[SparkSession, str, str, str], None]
"""Reads the present input and stops. Arguments: session, folder of the inputs (for Kafka: the servers), folder of the output
tables, checkpoint or store."""
File = Mapping[str, Sequence[Mapping[str, object]]]
"""Rows of one new file for each input, by the name of the input."""


@dataclass(frozen=True)
class Changes:
    """Lines of a plain program, and those of them that the job lacks or has in addition."""

    lines: int
    removed: int
    added: int


@dataclass(frozen=True)
class Ported:
    """A program in both forms.

    - `files`: draws the input, a file of each input for each run of the program.
    - `sinks`: tables that both forms write.
    - `shared`: functions and classes that both forms use unchanged.
    - `change`: description of the changed lines.
    - `tables`: inputs that are Delta tables; a file replaces the table's rows.
    - `settings`: settings of the session for both forms.
    """

    name: str
    plain: Program
    job: Program
    files: Callable[[random.Random], Sequence[File]]
    sinks: tuple[str, ...]
    change: str
    shared: tuple[Callable[..., object], ...] = ()
    tables: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    kafka: bool = False

    @property
    def original(self) -> str:
        """The public program that the plain form follows, from its docstring."""
        found = re.search(r"After `([^`]+)` of ([\w./-]+\w)", inspect.getdoc(self.plain) or "")
        if found is None:
            raise ValueError(f"the docstring of {self.plain} names no public program: After `FILE` of OWNER/NAME")
        return f"{found[2]}: {found[1]}"

    @cached_property
    def changes(self) -> Changes:
        """Count the lines. Comments, docstrings, the lines of `def`, imports and indentation do not count."""
        plain, job = body(self.plain), body(self.job)
        common = sum(block.size for block in SequenceMatcher(None, plain, job, autojunk=False).get_matching_blocks())
        shared = sum(len(code(inspect.getsource(each))) for each in self.shared)
        return Changes(shared + len(plain), len(plain) - common, len(job) - common)

    @property
    def digest(self) -> str:
        """Fingerprint of the code of both forms. Comments and line breaks do not change it."""
        pieces = (self.plain, self.job, self.files, *self.shared)
        trees = [ast.dump(ast.parse(textwrap.dedent(inspect.getsource(each)))) for each in pieces]
        return hashlib.sha256("\n".join(trees).encode()).hexdigest()[:16]


def body(function: Callable[..., object]) -> list[str]:
    """Return the lines of code of a function's body, without indentation."""
    source = textwrap.dedent(inspect.getsource(function))
    definition = ast.parse(source).body[0]
    assert isinstance(definition, ast.FunctionDef)
    return code("\n".join(source.splitlines()[definition.body[0].lineno - 1 :]))


def code(source: str) -> list[str]:
    """Return the lines of code of a source text, without indentation, docstrings and comments."""
    source = textwrap.dedent(source)
    skipped: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = (line.strip() for number, line in enumerate(source.splitlines(), 1) if number not in skipped)
    return [line for line in lines if line and not line.startswith("#")]
