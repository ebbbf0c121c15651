"""The page's connector is found and passes the suite, with the page's steps."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.docs.installed_page import install, run


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    install(site)
    return site


def test_the_pages_connector_passes_the_suite(site: Path) -> None:
    done = run(site, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")

    assert done.returncode == 0, done.stdout
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) > 35


def test_the_pages_connector_is_listed(site: Path) -> None:
    connector = json.loads(run(site, "-m", "spark_ckpt", "connectors", "--json").stdout)["connectors"]["acme-ledger"]

    assert connector["version"] == "1.0"
    assert list(connector["sources"]) == ["SegmentsSource"]
    assert connector["sinks"]["SqliteSink"][0] == "rows exactly once"
