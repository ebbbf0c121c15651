"""Connectors are found by their entry points; a broken one is reported by name, and affects only its users."""

from __future__ import annotations

import itertools
import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_ckpt import connectors
from spark_ckpt.cli.app import exit_code
from spark_ckpt.connector import CONTRACT
from spark_ckpt.errors import ConfigInvalid, ConnectorBroken, ConnectorTooNew, ConnectorUnknown

_NUMBERS = itertools.count()
SINK = """
class LedgerSink:
    "A sink."
    def check(self, spark, schema): ...
    def stage(self, schema): ...
    def publisher(self, spark, context): ...
    def describe(self): return {}
    def newest_published(self, context): ...
"""
GOOD = (
    "from spark_ckpt.connector import Connector\n"
    'CONNECTOR = Connector("ledger", contract=1, sinks=("LedgerSink",))\n' + SINK
)
Install = Callable[..., str]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a distribution with one connector on the path, as pip does; return the module's name."""

    def put(code: str, name: str = "ledger", attribute: str = "", extras: tuple[str, ...] = ()) -> str:
        number = next(_NUMBERS)
        module, site = f"acme_{number}", tmp_path / str(number)
        info = site / f"{module}-2.5.dist-info"
        info.mkdir(parents=True)
        (site / f"{module}.py").write_text(textwrap.dedent(code))
        provided = "".join(f"Provides-Extra: {each}\n" for each in extras)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 2.5\n{provided}")
        (info / "entry_points.txt").write_text(f"[spark_ckpt.connectors]\n{name} = {module}{attribute}\n")
        monkeypatch.syspath_prepend(str(site))
        return module

    return put


@pytest.mark.parametrize("attribute", ["", ":CONNECTOR"])
def test_a_connector_is_found_by_its_entry_point(install: Install, attribute: str) -> None:
    module = install(GOOD, attribute=attribute)

    found = connectors.named("ledger")

    assert (found.name, found.module, found.distribution, found.version) == ("ledger", module, module, "2.5")
    assert [each.__name__ for each in found.sinks()] == ["LedgerSink"]
    assert connectors.promises(found.sinks()[0]) == ["rows exactly once", "reports the newest published epoch"]


def test_our_own_connectors_are_found_like_any_other() -> None:
    assert {"delta", "files", "kafka"} <= set(connectors.names())
    assert all(connectors.named(name).sources() for name in ("delta", "files", "kafka"))


def test_an_unknown_name_is_refused_with_what_is_installed_and_what_to_install() -> None:
    with pytest.raises(ConnectorUnknown, match="'cobol'") as unknown:
        connectors.named("cobol")

    assert "delta, files, kafka" in str(unknown.value.context["installed"])


def test_an_extra_that_was_taken_for_a_connector_is_named_as_what_to_install() -> None:
    with pytest.raises(ConnectorUnknown) as unknown:
        connectors.named("registry")

    assert "pip install 'spark-ckpt[registry]'" in unknown.value.hint


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import no_such_library", "no_such_library"),
        ("1 / 0", "ZeroDivisionError"),
        ("x = 1", "CONNECTOR"),
        ("CONNECTOR = {'name': 'ledger'}", "gives a dict"),
        (GOOD.replace('"ledger"', '"journal"'), "'journal'"),
        (GOOD.replace("contract=1", "contract='1'"), "contract"),
        (GOOD.replace('sinks=("LedgerSink",)', 'sinks="LedgerSink"'), "tuples of names"),
        (GOOD.replace('sinks=("LedgerSink",)', "jars=()"), "neither a source nor a sink"),
        (GOOD.replace("sinks=", "jars=('a.jar',), sinks="), "jars are"),
        (GOOD.replace("sinks=", "settings={'a': 1}, sinks="), "settings are"),
        (GOOD.replace("sinks=", "colour='red', sinks="), "colour"),
    ],
)
def test_a_broken_declaration_is_reported(install: Install, code: str, message: str) -> None:
    install(code)

    with pytest.raises(ConnectorBroken) as broken:
        connectors.named("ledger")
    assert message in broken.value.what
    assert broken.value.hint


def test_a_library_that_is_missing_is_installed_by_the_packages_extra(install: Install) -> None:
    module = install("import no_such_library", extras=("ledger",))

    with pytest.raises(ConnectorBroken) as broken:
        connectors.named("ledger")
    assert broken.value.hint == f"pip install '{module}[ledger]'"


def test_a_newer_contract_is_refused_before_its_other_fields_are_read(install: Install) -> None:
    install(GOOD.replace("contract=1", f"contract={CONTRACT + 1}").replace('sinks=("LedgerSink",)', "sinks=5"))

    with pytest.raises(ConnectorTooNew, match=f"contract {CONTRACT + 1}") as newer:
        connectors.named("ledger")
    assert "pip install --upgrade spark-ckpt" in newer.value.hint


def test_a_class_that_lacks_a_method_is_reported_with_the_method(install: Install) -> None:
    install(GOOD.replace("def publisher(self, spark, context): ...", "pass"))

    with pytest.raises(ConnectorBroken, match="lacks publisher"):
        connectors.named("ledger").sinks()


def test_a_missing_class_is_reported(install: Install) -> None:
    install(GOOD.replace("class LedgerSink", "class OtherSink"))

    with pytest.raises(ConnectorBroken, match="LedgerSink cannot be imported"):
        connectors.named("ledger").sinks()


def test_two_packages_with_one_name_are_refused(install: Install) -> None:
    first, second = install(GOOD), install(GOOD)

    with pytest.raises(ConnectorBroken, match=f"{first}, {second}"):
        connectors.named("ledger")


def test_a_broken_package_affects_only_jobs_that_use_it(install: Install) -> None:
    install("import no_such_library")

    assert connectors.named("kafka").connector.jars


def test_settings_that_are_lists_are_joined_and_others_must_agree(install: Install) -> None:
    with_settings = GOOD.replace("sinks=", "settings={'spark.sql.extensions': 'org.Acme', 'a': '%s'}, sinks=")
    install(with_settings % "1")
    install((with_settings % "2").replace('"ledger"', '"journal"'), name="journal")
    ledger, journal, delta = (connectors.named(name) for name in ("ledger", "journal", "delta"))

    joined = connectors.spark_settings([delta, ledger])["spark.sql.extensions"]

    assert joined == "io.delta.sql.DeltaSparkSessionExtension,org.Acme"
    with pytest.raises(ConfigInvalid, match="a=2"):
        connectors.spark_settings([ledger, journal])


def test_a_session_with_an_unknown_connector_is_refused_before_java_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_ckpt.spark_session import session as spark_session

    monkeypatch.setattr(spark_session.SparkSession, "builder", None)

    with pytest.raises(ConnectorUnknown):
        spark_session.session("x", "cobol")


def test_the_list_has_broken_and_working_connectors(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("import no_such_library", name="broken")
    install(GOOD)

    code = exit_code(["connectors", "--json"])

    listed = json.loads(capsys.readouterr().out)["connectors"]
    assert code == ConnectorBroken.exit_code
    assert listed["broken"]["error"]["condition"] == "CKPT_CONNECTOR_BROKEN"
    assert listed["ledger"]["sinks"]["LedgerSink"][0] == "rows exactly once"
    assert listed["kafka"]["jars"][0].startswith("org.apache.spark:spark-sql-kafka")


def test_the_list_is_readable(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["connectors"]) == 0

    assert "spark_ckpt_delta.DeltaSink: rows exactly once" in capsys.readouterr().out


def test_the_core_names_no_connectors_jars() -> None:
    core = Path(connectors.__file__).parent

    assert not list(core.rglob("*.lock.json"))
