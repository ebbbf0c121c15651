"""Records that no machine wrote are refused with an error that names the expected type."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from checkpoint_protocols.ids import ChannelId
from checkpoint_protocols.machine import ProtocolViolation
from checkpoint_protocols.record_fields import (
    as_counts,
    by_number,
    by_process,
    counts,
    items,
    mapping,
    number,
    receipts,
)
from checkpoint_protocols.snapshots.coordinator import messages_in
from tests.protocol.plain import J, S, app


@pytest.mark.parametrize(
    ("read", "value", "why"),
    [(number, "1", "number"), (items, "ab", "list"), (items, 1, "list"), (mapping, [], "object")],
)
def test_another_type_is_refused(read: Callable[[object], object], value: object, why: str) -> None:
    with pytest.raises(ProtocolViolation, match=f"not an? {why}:"):
        read(value)


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (lambda record: number(record.get("index", 0)), {"index": "3"}),
        (lambda record: counts(record.get("sent", {})), {"sent": [3]}),
        (messages_in, {"messages": {"seq": 3}}),
    ],
)
def test_a_field_of_another_type_is_not_taken_for_an_absent_one(
    read: Callable[[dict[str, object]], object], value: dict[str, object]
) -> None:
    assert not read({})
    with pytest.raises(ProtocolViolation):
        read(value)


def test_counts_and_messages_survive_a_record() -> None:
    assert counts(as_counts({ChannelId("s->j"): 2})) == {"s->j": 2}
    assert by_process(as_counts({S: 2})) == {S: 2}
    assert by_number(as_counts({7: 2})) == {7: 2}
    assert receipts([app(S, J, 1).message.as_record()]) == [app(S, J, 1)]
