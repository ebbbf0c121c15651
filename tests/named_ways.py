"""Compare the commands, options, arguments and settings in a text with the real command line and signatures.

A complaint is a sentence; without a complaint, everything that the text names exists.
"""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import spark_ckpt_kafka.repair
import typer
from pyspark.sql import DataFrame

from spark_ckpt import SparkSource, connectors, read_state, session, state_frame
from spark_ckpt.api.grouped import CoGroupedStreams, GroupedStream
from spark_ckpt.api.job import Job
from spark_ckpt.api.stream import Stream
from spark_ckpt.cli.app import application
from spark_ckpt.config import CONF_PREFIX, setting_names
from spark_ckpt.connector import SinkRows
from spark_ckpt.driver.run import Run
from spark_ckpt.outbox.outbox import Outbox
from spark_rewind import PinListener

ANY = "X"
"""Replaces the values that a message fills in."""
_COMMAND = re.compile(r"spark-ckpt[ \n]+(?!\|)([^`;|&()\n]*)")
_OPTION = re.compile(r"--?[a-z][a-z-]*")
_CALL = re.compile(r"\b(\w+)\(((?:[^()`\n]|\([^()]*\))*)\)")
_KEYWORD = re.compile(r"(?<![\w.'\"/-])([a-z_][A-Za-z_]*)=(?!=)")
_CONF = re.compile(re.escape(CONF_PREFIX) + r"[a-z_]+(?:\.[a-z_]+)*")
_PROSE = frozenset({"that", "job", "itself"})
"""Words that follow the program's name in a sentence about it."""


@cache
def verbs() -> Mapping[tuple[str, ...], frozenset[str] | None]:
    """Return the options of every command, by its words; None for a group."""
    return dict(_below(typer.main.get_command(application()), ()))


def _below(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], frozenset[str] | None]]:
    inner = getattr(command, "commands", {})
    if words:
        yield words, None if inner else _options(command)
    for name, each in inner.items():
        yield from _below(each, (*words, name))


def _options(command: Any) -> frozenset[str]:
    named = [each for each in command.params if each.param_type_name == "option"]
    return frozenset({"--help"}.union(*({*each.opts, *each.secondary_opts} for each in named)))


@cache
def required() -> Mapping[tuple[str, ...], tuple[int, frozenset[str]]]:
    """Return how many positional arguments every command needs, and which options, by its words."""
    return dict(_required(typer.main.get_command(application()), ()))


def _required(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], tuple[int, frozenset[str]]]]:
    needed = [each for each in command.params if each.required]
    options = frozenset(each.opts[0] for each in needed if each.param_type_name == "option")
    yield words, (sum(each.param_type_name == "argument" for each in needed), options)
    for name, each in getattr(command, "commands", {}).items():
        yield from _required(each, (*words, name))


@cache
def every_option() -> frozenset[str]:
    """Return the options of all our commands."""
    repair = frozenset(re.findall(r'add_argument\("(--[\w-]+)"', inspect.getsource(spark_ckpt_kafka.repair)))
    return repair.union(*(options for options in verbs().values() if options))


@cache
def arguments() -> Mapping[str, frozenset[str]]:
    """Return the named parameters of each API function that errors and pages mention."""
    functions: dict[str, Any] = {}
    for kind in (Stream, GroupedStream, CoGroupedStreams, Run, Job):
        functions |= {name: each for name, each in vars(kind).items() if inspect.isfunction(each) and name[0] != "_"}
    functions = {name: each for name, each in functions.items() if not hasattr(DataFrame, name) and name != "plan"}
    functions |= {each.__name__: each for each in (session, read_state, state_frame, SparkSource, PinListener)}
    functions["join"] = Stream.join
    found = {name: _taken(each) for name, each in functions.items() if not _takes_any(each)}
    found["Job"] = _taken(Job) | frozenset(setting_names())
    found["Outbox"] = _taken(Outbox)
    found["SinkRows"] = _taken(SinkRows)
    found["start"] |= _taken(Outbox.start)
    for name in connectors.names():
        declared = connectors.named(name)
        found |= {kind.__name__: _taken(kind) for kind in (*declared.sources(), *declared.sinks())}
    return found


def _taken(function: Any) -> frozenset[str]:
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return frozenset(each.name for each in inspect.signature(function).parameters.values() if each.kind in kinds)


def _takes_any(function: Any) -> bool:
    return any(each.kind is inspect.Parameter.VAR_KEYWORD for each in inspect.signature(function).parameters.values())


# -- complaints about a text --------------------------------------------------------------------------------------------


def complaints(text: str) -> list[str]:
    """Return complaints about the names in a text: commands with their options, calls with their arguments, conf keys."""
    return [*wrong_commands(text), *wrong_calls(text), *wrong_keys(text)]


def wrong_commands(text: str) -> list[str]:
    """Return commands that do not exist, or do not accept the written options."""
    joined = text.replace("\\\n", " ")
    return [wrong for match in _COMMAND.finditer(joined) if (wrong := _wrong(match[1].strip()))]


def _wrong(written: str) -> str:
    words = _words(written)
    if not words or words[0] in _PROSE or not re.match(r"[a-z-]", words[0]):
        return ""
    if any("=" in word and word[0] != "-" for word in words[:2]):  # a label of ours in a table's log, not a command
        return ""
    if words[0].startswith("-"):
        return "" if words[0] in ("--help", "--version") else f"spark-ckpt takes no {words[0]}"
    known = next((tuple(words[:size]) for size in (3, 2, 1) if tuple(words[:size]) in verbs()), None)
    if known is None:
        return f"there is no command spark-ckpt {words[0]}"
    options, rest = verbs()[known], words[len(known) :]
    if options is None:
        return (
            ""
            if not rest or not re.fullmatch(r"[a-z-]+", rest[0])
            else f"there is no command spark-ckpt {' '.join(words[:2])}"
        )
    unknown = [
        each for each in rest if _OPTION.fullmatch(each.partition("=")[0]) and each.partition("=")[0] not in options
    ]
    return f"spark-ckpt {' '.join(known)} takes no {unknown[0]}" if unknown else ""


def incomplete_commands(text: str) -> list[str]:
    """Return commands that are written with arguments, but not with all that they need. A bare name only mentions one."""
    return [wrong for match in _COMMAND.finditer(text) if (wrong := _incomplete(match[1].strip()))]


def _incomplete(written: str) -> str:
    words = _words(written)
    known = next((tuple(words[:size]) for size in (3, 2, 1) if tuple(words[:size]) in verbs()), None)
    if known is None or verbs()[known] is None:
        return ""
    # A filled-in value, or a name in capitals; the value of an option is none of them.
    given = [
        word
        for before, word in pairwise(words[len(known) - 1 :])
        if before[0:2] != "--" and re.fullmatch(rf"[A-Z]+|{ANY}", word)
    ]
    name, (count, options) = " ".join(known), required()[known]
    if not given:
        return ""
    if len(given) < count:
        return f"spark-ckpt {name} lacks an argument after {given[-1]}"
    lacks = [each for each in sorted(options) if each not in words]
    return f"spark-ckpt {name} lacks {lacks[0]}" if lacks else ""


def _words(written: str) -> list[str]:
    try:
        words = shlex.split(written, comments=True)
    except ValueError:  # the quote of a text around it
        words = written.split()
    return [word.strip("'\",.:[]") for word in words]


def wrong_calls(text: str) -> list[str]:
    """Return calls of the API with an argument that the function does not accept."""
    return [
        f"{match[1]} takes no {name}"
        for match in _CALL.finditer(text)
        if match[1] in arguments()
        for name in _KEYWORD.findall(re.sub(r"\([^()]*\)", "()", match[2]))
        if name not in arguments()[match[1]]
    ]


def wrong_keys(text: str) -> list[str]:
    """Return conf keys of ours that are not settings."""
    keys = {CONF_PREFIX + name.replace("_", ".") for name in setting_names()}
    keys |= {CONF_PREFIX + name for name in setting_names()}
    return [f"there is no setting {key}" for key in _CONF.findall(text) if key not in keys]


def wrong_advice(text: str) -> list[str]:
    """Return complaints about an error's hint, cause or cure: options and arguments that stand alone must exist, too."""
    named = {name for taken in arguments().values() for name in taken}
    options = [each for each in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text) if each not in every_option() | _OTHERS]
    lone = [each for each in _KEYWORD.findall(text) if each not in named | _VALUES]
    return [
        *complaints(text),
        *incomplete_commands(text),
        *(f"no command takes {each}" for each in options),
        *(f"no function takes {each}=" for each in lone),
    ]


_OTHERS = frozenset(
    {"--jars", "--conf", "--py-files", "--upgrade", "--create", "--topic", "--partitions", "--bootstrap-server"}
)
"""Of spark-submit, pip and kafka-topics.sh."""
_VALUES = frozenset({"username", "password", "total", "n"})
"""Of a JAAS configuration; the names that examples give to columns."""


# -- texts of the code --------------------------------------------------------------------------------------------------


def texts_of(module: Path) -> Iterator[str]:
    """Yield every literal of a module; filled-in values become `ANY`."""
    nodes = list(ast.walk(ast.parse(module.read_text())))
    inner = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if id(node) not in inner and (text := _text(node)):
            yield text


def hints_of(module: Path) -> Iterator[str]:
    """Yield the advice of a module's errors: texts passed as `hint`, or as a part of it, and variables named `hint`."""
    for node in ast.walk(ast.parse(module.read_text())):
        texts = [each.value for each in node.keywords if each.arg == "hint"] if isinstance(node, ast.Call) else []
        if isinstance(node, ast.Assign) and any("hint" in ast.unparse(each).lower() for each in node.targets):
            texts.append(node.value)
        for value in texts:
            yield from filter(None, map(_text, _outermost(value)))


def _outermost(node: ast.AST) -> Iterable[ast.AST]:
    if isinstance(node, ast.JoinedStr | ast.Constant):
        return [node]
    return [each for child in ast.iter_child_nodes(node) for each in _outermost(child)]


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else ANY for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
