"""Seeds of planted bugs in the order in which they are tried: first the one that condemned the bug when it was measured last.

Any schedule that condemns a bug catches it. The search for the first one is the measurement's, and takes most of its time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache

from integration_tests.proof.page import RESULTS


def seeds_for(where: str, bug: str, seeds: Iterable[int]) -> list[int]:
    """All of `seeds`, and the measured one before them. `where`: what the measurement calls the rules that have the bug."""
    return known_first(_measured().get((where, bug)), seeds)


def known_first(known: int | None, seeds: Iterable[int]) -> list[int]:
    """All of `seeds`, and before them the known one, if there is one."""
    return [*seeds] if known is None else [known, *(seed for seed in seeds if seed != known)]


@cache
def _measured() -> dict[tuple[str, str], int]:
    caught = json.loads(RESULTS.read_text())["caught"]
    return {(each["where"], each["bug"]): each["seeds"] - 1 for each in caught if each["seeds"] is not None}
