"""Find uses of undocumented parts of Spark in a module's text: imports, attributes, strings."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pyspark

from spark_ckpt import spark_internals as spark_private
from spark_ckpt.spark_internals.names import SparkName

PUBLIC_MODULES = (
    "pyspark", "pyspark.errors", "pyspark.sql", "pyspark.sql.functions", "pyspark.sql.types", "pyspark.sql.datasource",
    "pyspark.sql.streaming", "pyspark.sql.streaming.datasource", "pyspark.sql.streaming.listener", "pyspark.sql.streaming.query",
    "pyspark.sql.streaming.state",
    "py4j.protocol",
)  # fmt: skip
"""Documented modules of PySpark, and the module of the error that any call may raise when Java is gone."""
_INSIDE_PUBLIC = ("Py4JJavaError", "java_gateway", "daemon", "worker", "serializers", "cloudpickle", "accumulators")

PUBLIC_SETTINGS = frozenset(
    {
        "spark.driver.extraJavaOptions", "spark.jars", "spark.ui.enabled", "spark.ui.showConsoleProgress",
        "spark.sql.catalog.spark_catalog", "spark.sql.extensions", "spark.sql.session.timeZone",
        "spark.sql.shuffle.partitions", "spark.sql.ui.explainMode", "spark.sql.execution.arrow.maxRecordsPerBatch",
        "spark.sql.execution.arrow.pyspark.enabled",
        "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled",
        "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype",
    }
)  # fmt: skip
"""Settings that Spark documents; a test checks this against the installed Spark. Settings of other projects are not listed."""
_OTHERS = ("spark.ckpt.", "spark.databricks.")
_SETTING = re.compile(r"spark(\.[A-Za-z_]\w*)+")
_MODULE = re.compile(r"(?:pyspark|py4j)(\.\w+)+")
_SCALA = re.compile(r"org\.apache\.spark\.(?!sql\.delta\.)|\bMODULE\$|\w\$$|_\$eq$")
_FILES = re.compile(r"^/?(offsets|commits)/")


def every_name() -> list[SparkName]:
    """Return all names in the list of private Spark names."""
    names = (f"{spark_private.__name__}.{each.name}" for each in pkgutil.iter_modules(spark_private.__path__))
    return [name for module in map(importlib.import_module, names) for name in getattr(module, "NAMES", ())]


def private_uses(text: str, own: frozenset[str]) -> list[str]:
    """Return the private Spark names in the module's text. `own`: names that this library defines."""
    nodes = list(ast.walk(ast.parse(text)))
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    found = [*_imports(nodes), *_attributes(nodes, own), *_folders(nodes)]
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            found += _strings(node.value, own)
    return found


def _imports(nodes: Sequence[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (
                alias.name for alias in node.names if _is_sparks(alias.name) and alias.name not in PUBLIC_MODULES
            )
        elif isinstance(node, ast.ImportFrom) and node.module and _is_sparks(node.module) and not node.level:
            for alias in node.names:
                private = alias.name.startswith("_") or alias.name in _INSIDE_PUBLIC
                if private or node.module not in PUBLIC_MODULES:
                    yield f"{node.module}.{alias.name}"


def _is_sparks(module: str) -> bool:
    return module.split(".")[0] in ("pyspark", "py4j")


def _attributes(nodes: Sequence[ast.AST], own: frozenset[str]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Attribute) and _is_private(node.attr, own):
            yield f".{node.attr}"


def _folders(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """`folder / "offsets"`."""
    for node in nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant):
            yield from (repr(name) for name in ("offsets", "commits") if node.right.value == name)


def _is_private(name: str, own: frozenset[str]) -> bool:
    return name not in own and (name in underscored_of_pyspark() or name in listed_attributes())


def _strings(value: str, own: frozenset[str]) -> Iterator[str]:
    setting = _SETTING.fullmatch(value) and not value.startswith(_OTHERS) and value not in PUBLIC_SETTINGS
    module = _MODULE.fullmatch(value) and value not in PUBLIC_MODULES
    listed = value in listed_strings() or (value.startswith("_") and _is_private(value, own))
    if setting or module or listed or _SCALA.search(value) or _FILES.match(value):
        yield repr(value)


_ANYBODYS = frozenset(
    {
        *("DataFrame", "Popen", "apply", "children", "convert", "isStreaming", "manager"),
        *("metadata", "plan", "sources", "toDF", "to_pandas", "worker", "zip"),
    }
)
"""Listed names that are also public names of Spark or of others."""


@cache
def listed_attributes() -> frozenset[str]:
    """Return the last parts of the listed names that are attributes."""
    parts = (name.name.rpartition(".")[2] for name in every_name() if "." in name.name)
    return frozenset(part for part in parts if part.isidentifier()) - _ANYBODYS


@cache
def listed_strings() -> frozenset[str]:
    """Listed names that are written as strings."""
    return frozenset(name.name for name in every_name()) - _ANYBODYS


@cache
def underscored_of_pyspark() -> frozenset[str]:
    """Return attributes with an underscore that PySpark's driver sources define."""
    root = Path(pyspark.__file__).parent
    files = [
        *root.glob("*.py"),
        *(root / "core").glob("*.py"),
        *(root / "sql").glob("*.py"),
        *(root / "errors").rglob("*.py"),
    ]
    files += [*(root / "sql" / "classic").glob("*.py"), *(root / "sql" / "streaming").glob("*.py")]
    return frozenset(
        name
        for file in files
        for name in defined_in(file.read_text())
        if name.startswith("_") and not name.startswith("__")
    )


def defined_in(text: str) -> Iterator[str]:
    """Yield names of functions, classes, attributes and variables that a text defines."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def defined_by(modules: Iterable[Path]) -> frozenset[str]:
    """Return the names that several modules define."""
    return frozenset(name for module in modules for name in defined_in(module.read_text()))
