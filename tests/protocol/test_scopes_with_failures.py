"""Every schedule of a small scope with failures of processes, up to the order of independent steps."""

from __future__ import annotations

import pytest

from tests.protocol.scopes import SCOPES_WITH_FAILURES, Scope

QUICK = [scope for scope in SCOPES_WITH_FAILURES if scope.seconds < 1.5]
SLOW = [scope for scope in SCOPES_WITH_FAILURES if scope not in QUICK]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "scope", [*QUICK, *(pytest.param(scope, marks=pytest.mark.long) for scope in SLOW)], ids=lambda scope: scope.title
)
def test_every_schedule_of_a_scope_with_failures_keeps_the_promises(scope: Scope) -> None:
    assert scope.explore().states == scope.states
