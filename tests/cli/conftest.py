import shutil

import pytest

from tests.cli.cli_world import CommandLine, moved_to, three_epochs, two_branches


@pytest.fixture
def command(capsys):
    return CommandLine(capsys)


@pytest.fixture(scope="session")
def kept(tmp_path_factory):
    return three_epochs(tmp_path_factory.mktemp("three-epochs") / "store")


@pytest.fixture
def world(kept, tmp_path):
    """Return a copy of a store that is written once."""
    shutil.copytree(kept.store.location.local, tmp_path / "store")
    return moved_to(kept, tmp_path / "store")


@pytest.fixture
def branches(tmp_path):
    return two_branches(tmp_path / "store")
