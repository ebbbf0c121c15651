"""Stores for the page, and a reader of the page that parses HTML."""

from __future__ import annotations

import json
from html.parser import HTMLParser

from spark_ckpt.epochs.records import EpochBrief, GraphNode, PartTime, SinkAck, Timings
from tests.store.store_world import OPERATOR, SINK, World

HOSTILE = '</script><img src=x onerror="window.stolen=1"><script>window.stolen=1</script>\u2028\' " & {{7*7}}'
"""A hostile name that a page must escape."""
GRAPH = (
    GraphNode(id="source/in"),
    GraphNode(id=f"operator/{OPERATOR}", inputs=("source/in",)),
    GraphNode(id=f"sink/{SINK}", inputs=(f"operator/{OPERATOR}",)),
)


def reported_world(folder) -> World:
    """Create epochs 1 to 3 with parts and a graph, cursors with hostile texts."""
    world = World(folder)
    world.begin()
    for number, changes in enumerate(({"a": 1, "b": 2}, {"b": 3}, {HOSTILE: 5}), start=1):
        earlier = (
            PartTime(epoch=number - 1, part="decision", duration_ms=20),
            PartTime(epoch=number - 1, part="publish", sink=SINK, duration_ms=30),
        )
        facts = {
            "timings": Timings(barrier_ms=100, snapshot_ms=400, earlier=earlier[: 2 * number - 2], lag_rows={"in": 7}),
            "graph": GRAPH,
            "cursors": {"in": {"n": number, "text": HOSTILE}},
            "duration_ms": 520,
        }
        world.snapshot(changes)
        acks = (SinkAck(sink=SINK, epoch=number - 1),) if number > 1 else ()
        manifest = world.manifest(acks).model_copy(update=facts)
        world.commit(manifest)
        world.store.materialize(manifest)
    return world


class Elements(HTMLParser):
    """A page's elements as (tag, attributes), and the text inside each script."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.elements and self.elements[-1][0] == "script" and self.cdata_elem == "script":
            self.scripts[-1] += data

    @property
    def data(self):
        """Return the data of the page."""
        [inside] = [
            text
            for (_, attributes), text in zip(
                [each for each in self.elements if each[0] == "script"], self.scripts, strict=True
            )
            if attributes.get("id") == "data"
        ]
        return json.loads(inside)


def many_briefs(count):
    """Return briefs of one long incarnation, oldest first."""
    for epoch in range(1, count + 1):
        yield EpochBrief(
            epoch=epoch, incarnation=1, attempt=f"a{epoch}", base=epoch - 1, previous=epoch - 1,
            created_ms=1_700_000_000_000 + epoch * 5000, duration_ms=400 + epoch % 300, reason="interval", rows_in=epoch,
            rows_out=epoch, sinks=(SINK,), acks=(), state_bytes=epoch * 1000,
            timings=Timings(barrier_ms=100, snapshot_ms=250 + epoch % 300, earlier=(
                PartTime(epoch=epoch - 1, part="decision", duration_ms=20 + epoch % 7),)),
        )  # fmt: skip
