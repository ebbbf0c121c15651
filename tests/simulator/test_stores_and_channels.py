"""Records that survive a crash, and promises of channels."""

from __future__ import annotations

import pytest

import checkpoint_lab as sim
from checkpoint_lab.durable import Item, Storage, Write, frame, standing, unframe
from checkpoint_lab.message_world import MessageWorld
from checkpoint_lab.process import Network
from checkpoint_protocols.ids import ChannelId, Epoch, Incarnation, ProcessId
from checkpoint_protocols.recovery import Needs, checkpoint_key
from checkpoint_protocols.vocabulary import Envelope
from tests.simulator import markers

RECORD = {"incarnation": 1, "index": 3, "text": "ä", "messages": [[1, 2]]}
P = ProcessId("p")


def test_a_record_torn_at_any_byte_is_unreadable() -> None:
    framed = frame(RECORD)

    assert unframe(framed) == RECORD
    assert [cut for cut in range(len(framed)) if unframe(framed[:cut]) is not None] == []


def test_a_torn_write_keeps_the_old_record() -> None:
    storage = Storage()
    storage.tear(Write(("log", "1"), frame(RECORD), "t", None))
    assert storage.readable() == {}

    storage.write(Write(("log", "1"), frame(RECORD), "t", None))
    storage.tear(Write(("log", "1"), frame({**RECORD, "index": 4}), "t", None))

    assert storage.readable() == {("log", "1"): RECORD}


def test_records_that_are_not_json_are_refused() -> None:
    with pytest.raises(TypeError):
        frame({"incarnation": 1, "index": object()})  # type: ignore[dict-item]


@pytest.mark.parametrize(("row", "kept"), [(2, False), (3, True), (4, True)])
def test_checkpoints_up_to_the_line_are_valid_and_later_ones_are_not(row: int, kept: bool) -> None:
    records = {checkpoint_key(3): RECORD, ("log", "x"): RECORD}
    scalar = {Incarnation(2): Epoch(row)}
    vector = {Incarnation(2): {P: Epoch(row)}}

    assert bool(standing(P, records, scalar)) == kept
    assert bool(standing(P, records, vector)) == kept
    assert len(standing(ProcessId("other"), records, vector)) == 2


def test_recoveries_before_a_record_do_not_undo_it() -> None:
    assert standing(P, {checkpoint_key(3): RECORD}, {Incarnation(1): Epoch(0)})


def item(uid: int) -> Item:
    message = Envelope(ProcessId("s"), ProcessId("a"), Incarnation(1), uid, 0, "app", {}, f"s.{uid}")
    return Item(uid, message, 1 << uid)


CHANNEL = ChannelId("s->a")


def network(**needs: bool) -> Network:
    made = Network(sim.GRAPHS["pipeline"], Needs(**needs))
    for uid in range(4):
        made.put(CHANNEL, item(uid))
    return made


def test_unfinished_messages_return_to_the_head_in_order() -> None:
    channels = network()
    pending = {each.bit: (CHANNEL, each) for each in (channels.take(CHANNEL, 0), channels.take(CHANNEL, 0))}

    channels.give_back(pending, taken=0)

    assert [each.uid for each in channels.queues[CHANNEL]] == [0, 1, 2, 3]


def test_messages_of_the_restored_state_are_not_delivered_again() -> None:
    channels = network()
    first = channels.take(CHANNEL, 0)

    channels.give_back({first.bit: (CHANNEL, first)}, taken=first.bit)

    assert [each.uid for each in channels.queues[CHANNEL]] == [1, 2, 3]


def test_a_log_channel_is_read_again_from_the_restored_position() -> None:
    channels = network(replayable=True)
    for _ in range(3):
        channels.take(CHANNEL, 0)

    channels.read_again(ProcessId("a"), taken=0b0001)

    assert [each.uid for each in channels.queues[CHANNEL]] == [1, 2, 3]


def test_only_unreliable_channels_lose_and_repeat() -> None:
    def kinds(needs: Needs) -> set[object]:
        from dataclasses import replace

        world = MessageWorld(replace(markers.protocol(), needs=needs), sim.GRAPHS["pair"], sim.Faults())
        world.do(("read", "s"))
        return {choice[0] for choice in world.faults()}

    assert {"lose", "repeat"} <= kinds(Needs(reliable=False))
    assert kinds(Needs()).isdisjoint({"lose", "repeat"})


def test_any_message_can_be_next_on_channels_without_order() -> None:
    def deliveries(fifo: bool) -> list[object]:
        world = MessageWorld(markers.protocol(fifo=fifo), sim.GRAPHS["pair"])
        world.do(("read", "s"))
        world.do(("read", "s"))
        return [choice for choice in world.choices() if choice[0] == "deliver"]

    assert deliveries(fifo=True) == [("deliver", "s->k", 0)]
    assert deliveries(fifo=False) == [("deliver", "s->k", 0), ("deliver", "s->k", 1)]


def test_a_paused_process_and_a_cut_link_do_nothing_until_it_is_over() -> None:
    world = MessageWorld(markers.protocol(), sim.GRAPHS["pair"], sim.Faults())
    world.do(("read", "s"))
    world.do(("cut", "k", "s"))
    assert ("deliver", "s->k", 0) not in world.choices()
    world.do(("heal", "k", "s"))
    assert ("deliver", "s->k", 0) in world.choices()
    world.do(("pause", "k"))
    assert ("deliver", "s->k", 0) not in world.choices()

    world.calm()

    assert ("deliver", "s->k", 0) in world.choices()


def test_a_budget_limits_faults() -> None:
    world = MessageWorld(markers.protocol(), sim.GRAPHS["pair"], sim.Faults(crashes=1))
    assert ("crash", "k") in world.faults()

    world.do(("crash", "s"))

    assert [choice for choice in world.faults() if choice[0] == "crash"] == []
