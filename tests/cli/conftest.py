import pytest

from tests.cli.cli_world import CommandLine, three_epochs, two_branches


@pytest.fixture
def command(capsys):
    return CommandLine(capsys)


@pytest.fixture
def world(tmp_path):
    return three_epochs(tmp_path / "store")


@pytest.fixture
def branches(tmp_path):
    return two_branches(tmp_path / "store")
