"""The tests of what Spark does not promise come first: what they find would fail many others, and less plainly."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the order of all others."""
    items.sort(key=lambda item: item.path.parent.name != "spark_private")
