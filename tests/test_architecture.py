"""The shape of the code: allowed imports, length of functions and modules, public names."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from spark_private_guard import defined_by, every_name, private_uses

import spark_ckpt
from spark_ckpt import errors
from spark_ckpt.errors import CkptError

ROOT = Path(spark_ckpt.__file__).parents[1]
CORE = ROOT / "spark_ckpt"
PROTOCOLS = ROOT / "checkpoint_protocols"
CONNECTORS = ROOT / "connectors"
BESIDE = {CONNECTORS, ROOT / "examples"}
"""Folders whose packages are imported without the folder's name."""
PACKAGES = (
    CORE,
    PROTOCOLS,
    ROOT / "checkpoint_lab",
    ROOT / "spark_rewind",
    CONNECTORS,
    ROOT / "examples" / "spark_ckpt_demo",
)
MODULES = sorted(module for package in PACKAGES for module in package.rglob("*.py"))
MOST_FUNCTION_LINES, MOST_MODULE_LINES = 50, 700

IO_FREE = ("os", "io", "pathlib", "socket", "time", "random", "threading", "queue", "subprocess", "pyarrow", "deltalake",
           "pyspark", "pandas", "datetime", "uuid", "secrets", "asyncio", "multiprocessing")  # fmt: skip
"""Modules that a pure machine must not be able to reach: input, output, clocks, randomness, threads."""


def imports_of(module: Path, *, at_run_time: bool = False) -> Iterator[str]:
    """Yield absolute names of the modules that a file imports; imports for type checkers count unless `at_run_time`."""
    tree = ast.parse(module.read_text())
    skipped = {id(node) for guard in ast.walk(tree) if at_run_time and is_type_guard(guard) for node in ast.walk(guard)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package_of(module, node.level) if node.level else []
            yield from (".".join(filter(None, [*base, node.module, alias.name])) for alias in node.names)


def is_type_guard(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def package_of(module: Path, level: int) -> list[str]:
    root = next((folder for folder in BESIDE if module.is_relative_to(folder)), ROOT)
    return list(module.relative_to(root).parts[:-level])


def within(name: str, allowed: set[str]) -> bool:
    return any(name == each or name.startswith(each + ".") for each in allowed)


def named(module: Path) -> str:
    return str(module.relative_to(ROOT))


def outside_of_the_room() -> list[Path]:
    return [module for module in MODULES if not module.is_relative_to(CORE / "spark_internals")]


def test_undocumented_parts_of_spark_are_used_in_one_place():
    used = {named(module): private_uses(module.read_text(), own_names()) for module in outside_of_the_room()}
    assert {module: found for module, found in used.items() if found} == {}


@cache
def own_names() -> frozenset[str]:
    return defined_by(outside_of_the_room())


@pytest.mark.parametrize(
    "planted",
    [
        "jvm = spark.sparkContext._jvm",
        "plan = frame._jdf.queryExecution()",
        "limits = execution.uniqueSources()",
        "getattr(execution, 'uniqueSources_$eq')(limits)",
        "cause = getattr(error, '_cause', None)",
        "from pyspark.sql.conversion import ArrowBatchTransformer",
        "from pyspark.sql.pandas.types import to_arrow_schema",
        "from pyspark import cloudpickle",
        "import pyspark.daemon",
        "if TYPE_CHECKING:\n    from py4j.java_gateway import JavaObject",
        "name = 'org.apache.spark.sql.execution.streaming.runtime.MemoryStream'",
        "settings = {'spark.sql.streaming.unsupportedOperationCheck': 'false'}",
        "module = import_module('pyspark.worker')",
        "path = f'offsets/{batch}'",
        "files = (checkpoint / 'offsets').iterdir()",
        "port = os.environ['PYSPARK_GATEWAY_PORT']",
    ],
)
def test_a_private_name_of_spark_outside_of_its_place_is_found(planted):
    assert private_uses(planted, own_names()) != []


@pytest.mark.parametrize(
    "honest",
    [
        "from pyspark.sql import DataFrame\nrows = frame.where('v > 1')",
        '"""As `spark.sparkContext._jvm` does; see org.apache.spark.sql.Dataset."""',
        "spark.conf.set('spark.sql.shuffle.partitions', '2')",
    ],
)
def test_documented_parts_of_spark_may_be_used_anywhere(honest):
    assert private_uses(honest, own_names()) == []


def test_every_private_name_of_spark_has_its_place_and_the_consequence_of_its_loss():
    names = every_name()
    assert len({name.name for name in names}) == len(names) > 50
    for name in names:
        assert re.fullmatch(r"\d+\.\d+\.\d+", name.seen_in)
        assert all((name.lives_in, name.breaks)), name
        for function in name.used_by.split(", "):
            assert defines(function), f"{name.name} is used by {function}, which is not there"


def defines(function: str) -> bool:
    return function.partition(".")[0] in names_in_the_room()


@cache
def names_in_the_room() -> frozenset[str]:
    return defined_by((CORE / "spark_internals").glob("*.py"))


# -- imports at run time ------------------------------------------------------------------------------------------------


def modules_of_row(where: str) -> frozenset[str]:
    """Return the modules in a row of the table on the architecture page, with their packages' names."""
    page = (ROOT / "docs" / "design" / "architecture.md").read_text()
    [row] = re.findall(rf"^\| {where}: [^|]*\|([^|]*)\|$", page, re.MULTILINE)
    connectors = tuple(folder.name for folder in CONNECTORS.iterdir())
    return frozenset(
        name if name.startswith((*connectors, "checkpoint_protocols")) else f"spark_ckpt.{name}"
        for name in re.findall(r"`([\w.]+)`", row)
    )


@cache
def module_texts() -> dict[str, str]:
    return {".".join([*package_of(module, 1), *stem_of(module)]): module.read_text() for module in MODULES}


def stem_of(module: Path) -> list[str]:
    return [] if module.stem == "__init__" else [module.stem]


def loaded_with(texts: dict[str, str], start: str) -> dict[str, str]:
    """Return each module that loads with `start`, also through a called function, and the module that imports it."""
    found, waiting = {start: ""}, [start]
    while waiting:
        name = waiting.pop()
        for needed_name in sorted(imported_by(name, texts) - found.keys()):
            found[needed_name] = name
            waiting.append(needed_name)
    return found


def imported_by(name: str, texts: dict[str, str]) -> set[str]:
    return names_imported(texts[name]) & texts.keys()


@cache
def names_imported(text: str) -> frozenset[str]:
    """Return imported modules and the packages above them, without imports for type checkers and lazy attributes of a package."""
    tree = ast.parse(text)
    lazy = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__getattr__"]
    lazy += [node for node in ast.walk(tree) if is_type_guard(node)]
    skipped = {id(node) for part in lazy for node in ast.walk(part)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in skipped:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
        elif isinstance(node, ast.Import) and id(node) not in skipped:
            found |= {alias.name for alias in node.names}
    return frozenset(each.rsplit(".", count)[0] for each in found for count in range(each.count(".") + 1))


def of_the_driver(texts: dict[str, str]) -> list[str]:
    """Return import chains from modules of tasks to modules of the driver."""
    allowed = set(modules_of_row("in tasks") | modules_of_row("plan"))
    packages = {name.rsplit(".", count)[0] for name in allowed for count in range(1, name.count(".") + 1)}
    wrong = []
    for start in sorted(texts):
        if within(start, set(modules_of_row("in tasks"))):
            found = loaded_with(texts, start)
            wrong += [import_chain(found, name) for name in found if name not in packages and not within(name, allowed)]
    return wrong


def import_chain(found: dict[str, str], name: str) -> str:
    steps = [name]
    while found[steps[-1]]:
        steps.append(found[steps[-1]])
    return " -> ".join(reversed(steps))


def test_tasks_never_load_modules_of_the_driver():
    assert of_the_driver(module_texts()) == []


@pytest.mark.parametrize(
    ("module", "planted"),
    [
        ("spark_ckpt.tasks.group_host", "from spark_ckpt.driver.incarnation import SparkIncarnation"),
        ("spark_ckpt.tasks.staging", "def stage():\n    from spark_ckpt.driver import supervisor"),
        ("spark_ckpt.tasks.rows", "import spark_ckpt.store.epoch_log"),
        ("spark_ckpt.connector", "from spark_ckpt.spark_internals.jvm import jvm_of"),
        ("spark_ckpt.tasks.failures", "from spark_ckpt.driver.a_new_module import anything"),
    ],
)
def test_a_task_that_loads_the_driver_is_found(module, planted):
    texts = module_texts() | {"spark_ckpt.driver.a_new_module": ""}
    wrong = of_the_driver(texts | {module: f"{texts[module]}\n{planted}\n"})
    assert any(f"{module} -> " in found for found in wrong)


def test_imports_for_type_checkers_load_nothing():
    planted = "\nif TYPE_CHECKING:\n    from spark_ckpt.driver.incarnation import SparkIncarnation\n"
    texts = dict(module_texts())
    texts["spark_ckpt.tasks.group_host"] += planted
    assert of_the_driver(texts) == []


def test_every_module_in_the_table_of_places_exists():
    named_there = modules_of_row("in tasks") | modules_of_row("plan")
    assert len(named_there) > 30
    assert named_there - module_texts().keys() == frozenset()


@pytest.mark.parametrize("folder", [PROTOCOLS, CORE / "coordination"], ids=named)
def test_machines_and_the_rules_around_them_reach_no_clock_no_disk_and_no_thread(folder):
    wrong = [
        f"{named(module)} imports {name}"
        for module in sorted(folder.rglob("*.py"))
        for name in imports_of(module)
        if name.split(".")[0] in IO_FREE
    ]
    assert wrong == []


def test_there_is_no_cycle_between_modules_at_run_time():
    graph = {dotted(module): needed(module) for module in MODULES}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            for following in sorted(graph.get(name, ())):
                visit(following, (*path, name))
            done.add(name)

    for start in sorted(graph):
        visit(start, ())


def dotted(module: Path) -> str:
    return ".".join([*package_of(module, 1), *stem_of(module)])


def needed(module: Path) -> set[str]:
    """Return modules that importing this one imports: only the file's top level; functions import when they are called."""
    tree, known = ast.parse(module.read_text()), known_modules()
    found = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & known) or ({node.module} & known)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & known
    return found - {dotted(module)}


@cache
def known_modules() -> frozenset[str]:
    return frozenset(dotted(each) for each in MODULES)


def test_functions_and_modules_stay_short():
    assert [f"{named(module)}: {found}" for module in MODULES for found in too_long(module.read_text())] == []


def too_long(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > MOST_FUNCTION_LINES:
                yield f"{node.name} has {lines} lines"
    if (lines := len(text.splitlines())) >= MOST_MODULE_LINES:
        yield f"{lines} lines"


def test_a_function_and_a_module_that_are_too_long_are_found():
    body = "    pass\n" * MOST_MODULE_LINES
    assert list(too_long(f"def f():\n{body}")) == ["f has 701 lines", "701 lines"]


def test_no_two_modules_of_tests_have_one_name():
    """Folders of tests are no packages: pytest refuses to collect two modules with one name."""
    modules = [path for top in ("tests", "integration_tests") for path in (ROOT / top).rglob("*.py")]
    names = Counter(path.name for path in modules if not (path.parent / "__init__.py").exists())
    assert [name for name, number in names.items() if number > 1 and name != "conftest.py"] == []


# -- private names in tests --------------------------------------------------------------------------------------------

PRIVATE_NAMES_OF_OTHERS = {
    "Spark": {
        "_active_spark_context", "_df", "_gateway", "_instantiatedSession", "_jsc", "_jsq", "_jvm", "_streamingCheckpointManager",
    },
    "confluent-kafka": {"_ALL_BROKERS_DOWN", "_PARTITION_EOF", "_TRANSPORT"},
    "Python": {"_exit", "_replace"},
}  # fmt: skip
"""Private names by their owner. Spark has no public alternative; the others document theirs."""
BY_NAME = ("setattr", "getattr", "delattr", "hasattr", "setitem", "attrgetter", "patch", "object")
"""Functions that take the name of an attribute as a text, to read or replace it."""


def test_tests_and_benchmarks_touch_nothing_private():
    folders = ("tests", "integration_tests", "benchmarks")
    found = {
        named(path): private_names(path.read_text()) for top in folders for path in sorted((ROOT / top).rglob("*.py"))
    }
    others = set[str]().union(*PRIVATE_NAMES_OF_OTHERS.values())
    assert {module: names - others for module, names in found.items() if names - others} == {}
    assert others == set[str]().union(*found.values()), "the list above is as short as it can be"


def private_names(text: str) -> set[str]:
    """Return private names that a text reads, imports or replaces, except those that a class defines itself or inherits."""
    if not re.search(r"\b_[A-Za-z]", text):
        return set()
    nodes = list(ast.walk(ast.parse(text)))
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    own = {id(node) for each in classes for node in ast.walk(each) if isinstance(node, ast.Attribute) and is_own(node)}
    names = [name for node in nodes if id(node) not in own for name in names_touched(node)]
    return {name for name in names if re.fullmatch(r"_[A-Za-z]\w*", name)}


def is_own(node: ast.Attribute) -> bool:
    """Return True for `self._name`, `cls._name` or `super()._name`."""
    of = node.value.func if isinstance(node.value, ast.Call) else node.value
    return isinstance(of, ast.Name) and of.id in ("self", "cls", "super")


def names_touched(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.ImportFrom):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and is_a_namespace(node.value):
        yield str(node.slice.value)
    elif isinstance(node, ast.Call) and last_name(node.func) in BY_NAME:
        texts = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        yield from (text.rpartition(".")[2] for text in texts)


def is_a_namespace(node: ast.AST) -> bool:
    """Return True for `vars(thing)` or `thing.__dict__`."""
    return last_name(node.func if isinstance(node, ast.Call) else node) in ("vars", "__dict__")


def last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize(
    "planted",
    [
        "run._supervisor.wake()",
        "def test(run):\n    assert run.log._epochs == {}",
        "def made(self):\n    return self._run  # of no class here",
        "class Other:\n    def __init__(self, run):\n        self.run = run._plan",
        "from spark_ckpt.store.log_table import _SCHEMA as SCHEMA",
        "monkeypatch.setattr(protocol, '_judged', lambda: None)",
        "monkeypatch.setattr('spark_ckpt.driver.source_watch._EVERY_S', 0.5)",
        "patch(SparkSink, '_rest', beside)",
        "getattr(run, '_plan')",
        "vars(run)['_plan'] = None",
        "run.__dict__['_plan']",
    ],
)
def test_a_private_name_in_a_test_is_found(planted):
    assert private_names(planted) != set()


@pytest.mark.parametrize(
    "honest",
    [
        "class Kit:\n    def __init__(self):\n        self._rows = []",
        "class Late(Primary):\n    def _wait(self):\n        super()._wait()",
        "def _rows():\n    return [_ for _ in _FILES]",
        "monkeypatch.setenv('_X', '1')",
        "machine.__class__",
    ],
)
def test_a_test_may_define_private_names(honest):
    assert private_names(honest) == set()


def test_no_module_is_named_utils_or_helpers():
    assert [
        named(module) for module in MODULES if module.stem in ("utils", "util", "helpers", "manager", "common")
    ] == []


def test_every_public_name_exists():
    assert [name for name in spark_ckpt.__all__ if getattr(spark_ckpt, name) is None] == []


def test_public_names_are_listed_once_and_can_be_discovered():
    assert sorted(set(spark_ckpt.__all__)) == sorted(spark_ckpt.__all__)
    assert set(dir(spark_ckpt)) >= set(spark_ckpt.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = spark_ckpt.no_such_name


# -- errors ------------------------------------------------------------------------------------------------------------


def every_error() -> list[type[CkptError]]:
    """Return all error classes of the core and the connectors, except modules whose dependencies are missing."""
    product = [f"spark_ckpt.{folder}" for folder in ("tasks", "plan", "driver", "store", "epochs")]
    for package in (*product, "spark_rewind"):
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            importlib.import_module(module.name)
    found, open_ = [], [CkptError]
    while open_:
        kind = open_.pop()
        found.append(kind)
        open_ += kind.__subclasses__()
    return sorted(
        (kind for kind in set(found) if kind.__module__.startswith(("spark_ckpt", "spark_rewind"))),
        key=lambda kind: kind.__name__,
    )


def test_every_error_prints_its_condition_context_and_next_step():
    for kind in every_error():
        error = kind("what happened", hint="run this", epoch=7, nothing=None)
        assert str(error) == f"[{kind.condition}] what happened\n  epoch: 7\n  next: run this"
        assert kind.condition.startswith("CKPT_"), kind
        assert kind.exit_code > 0, kind
        assert isinstance(kind.retriable, bool), kind


def test_every_error_survives_its_transfer_from_a_task():
    import pickle

    for kind in every_error():
        error = pickle.loads(pickle.dumps(kind("what", hint="next", key="('a',)")))
        assert (type(error), error.what, error.hint, error.context) == (kind, "what", "next", {"key": "('a',)"})


def test_every_error_has_its_own_condition():
    conditions = [kind.condition for kind in every_error()]
    assert len(conditions) == len(set(conditions))


def test_every_error_of_the_tree_has_a_docstring():
    assert [name for name, kind in vars(errors).items() if isinstance(kind, type) and not kind.__doc__] == []
