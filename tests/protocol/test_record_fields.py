"""Records that no machine wrote are refused, and said to be what they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from checkpoint_protocols.ids import ChannelId
from checkpoint_protocols.machine import ProtocolViolation
from checkpoint_protocols.record_fields import as_counts, counts, items, mapping, number, receipts
from tests.protocol.plain import J, S, app


@pytest.mark.parametrize(
    ("read", "value", "why"),
    [(number, "1", "number"), (items, "ab", "list"), (items, 1, "list"), (mapping, [], "object")],
)
def test_another_type_is_refused(read: Callable[[object], object], value: object, why: str) -> None:
    with pytest.raises(ProtocolViolation, match=f"not an? {why}:"):
        read(value)


def test_counts_and_messages_come_back_as_they_were() -> None:
    assert counts(as_counts({ChannelId("s->j"): 2})) == {"s->j": 2}
    assert receipts([app(S, J, 1).message.as_record()]) == [app(S, J, 1)]
