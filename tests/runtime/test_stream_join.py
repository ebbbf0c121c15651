"""The join of two streams equals a batch join of all rows, for any split into batches."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from operator_fixtures import MemoryStore, cache_of, snapshot, with_hash
from pyspark.sql.types import StructType

from spark_ckpt.errors import ConfigInvalid, GraphInvalid
from spark_ckpt.plan.input_plan import GroupedInput, input_plan
from spark_ckpt.plan.join_plan import join_plan
from spark_ckpt.tasks.operators import stream_join
from spark_ckpt.tasks.operators.named_inputs import PRESENT, TAG_PREFIX
from spark_ckpt.tasks.operators.operator import Binding, Clock
from spark_ckpt.tasks.operators.stream_join import LEFT, LEFT_ROWS, RIGHT, RIGHT_ROWS
from spark_ckpt.tasks.rows import arrow_schema
from spark_ckpt.tasks.state.group_state import KeyGroupState


def struct(**columns):
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    return schema


ORDERS = struct(k="string", item="string", day="date")
PAYMENTS = struct(k="string", paid="long")
L, R = LEFT, RIGHT


def tag(side):
    return f"{TAG_PREFIX}{side}"


class Joined:
    """A join and one key group of its state."""

    def __init__(self, folder, how="inner", ttl=None, left=ORDERS, right=PAYMENTS, on="k"):
        self.join = join_plan(left, right, on, how, ttl)
        self.sides = input_plan({L: GroupedInput(left, self.join.keys), R: GroupedInput(right, self.join.keys)})
        self.operator = self.join.operator(self.sides).bind(Binding("join"))
        self.store = MemoryStore()
        self.cache = cache_of(self.operator.schema, folder, self.store)
        self.group = KeyGroupState(self.operator.schema, self.cache, 0)

    def batch(self, *rows, now=1000, read=None):
        """Run a batch of (side, key, value); return the output as (key, left value, right value). `read`: clock of the inputs."""
        table = self.table(rows) if rows else None
        found = [
            each
            for table in self.operator.process(table, self.group, Clock(now, inputs_ms=read))
            for each in table.to_pylist()
        ]
        self.group = KeyGroupState.decode(self.group.encode(), self.operator.schema, self.cache, 0)
        return [(row["k"], row.get("item"), row.get("paid")) for row in found]

    def table(self, rows):
        values = {L: "item", R: "paid"}
        given = [{"k": key, tag(side): {values[side]: value, PRESENT: True}} for side, key, value in rows]
        return with_hash(pa.Table.from_pylist(given, arrow_schema(self.sides.schema)), ["k"])


@pytest.fixture
def joined(tmp_path):
    return Joined(tmp_path)


def test_a_row_joins_earlier_rows_of_the_other_side_from_any_batch(joined):
    assert joined.batch((L, "a", "x")) == []
    assert joined.batch((R, "a", 1)) == [("a", "x", 1)]
    assert joined.batch((R, "a", 2), (L, "a", "y")) == [("a", "y", 1), ("a", "y", 2), ("a", "x", 2)]
    assert joined.batch((L, "b", "z")) == []


def test_output_of_many_pairs_is_made_in_parts(joined, monkeypatch):
    """One array of texts holds 2 GiB at most."""
    monkeypatch.setattr(stream_join, "PAIRS", 3)
    joined.batch(*((L, "a", f"x{n}") for n in range(3)))
    table = joined.table([(R, "a", n) for n in range(4)])
    (found,) = joined.operator.process(table, joined.group, Clock(1000))
    assert found.column("item").num_chunks == 4
    rows = Counter((row["item"], row["paid"]) for row in found.to_pylist())
    assert rows == Counter((f"x{left}", right) for left in range(3) for right in range(4))


def test_rows_that_are_alike_are_rows_of_their_own(joined):
    joined.batch((L, "a", "x"), (L, "a", "x"))
    assert joined.batch((R, "a", 1), (R, "a", 1)) == [("a", "x", 1)] * 4


def test_a_row_of_nulls_is_a_row(joined):
    joined.batch((L, "a", None))
    assert joined.batch((R, "a", None)) == [("a", None, None)]


def test_both_sides_are_in_the_snapshot(joined):
    joined.batch((L, "a", "x"), (R, "a", 7), (L, "a", "y"))
    assert snapshot(joined.group, joined.store, 1)
    [file] = joined.store.files.values()
    [row] = file.to_pylist()
    assert [each["item"] for each in row[LEFT_ROWS]] == ["x", "y"]
    assert row[RIGHT_ROWS] == [{"paid": 7}]


def test_a_side_may_have_nothing_but_the_key(tmp_path):
    joined = Joined(tmp_path, right=struct(k="string"))
    joined.batch((L, "a", "x"))
    assert joined.batch((R, "a", None), (R, "a", None)) == [("a", "x", None)] * 2


def test_a_key_without_rows_for_the_ttl_is_forgotten(tmp_path):
    joined = Joined(tmp_path, ttl="1 minute")
    joined.batch((L, "a", "x"), now=0)
    assert joined.batch((R, "b", 1), now=59_000) == []
    assert joined.batch((R, "a", 1), now=59_500) == [("a", "x", 1)], "not yet"
    assert joined.batch(now=119_400) == []
    assert joined.batch((R, "a", 2), now=119_450) == [("a", "x", 2)], "a row extends the ttl"
    assert joined.batch(now=180_000) == []
    assert joined.batch((R, "a", 3), now=180_001) == []


def test_a_ttl_of_a_join_that_had_none_counts_from_the_start_for_keys_without_rows(tmp_path):
    before = Joined(tmp_path / "before")
    before.batch((L, "a", "x"), (L, "b", "y"), (L, "b", "z"))
    snapshot(before.group, before.store, 1)
    joined = Joined(tmp_path / "after", how="left", ttl="1 minute")
    joined.store.files = before.store.files
    joined.group = KeyGroupState.restored(joined.operator.schema, joined.cache, 0, before.group.files, 1)

    assert joined.batch((R, "b", 1), now=10_000) == [("b", "y", 1), ("b", "z", 1)]
    joined.batch(now=20_000)
    assert snapshot(joined.group, joined.store, 2)
    assert joined.group.earliest_timeout_ms == 70_000
    assert joined.batch(now=70_000) == []
    assert joined.batch(now=70_001) == [("a", "x", None)], "once"
    assert joined.batch((R, "a", 2), now=80_000) == []

    snapshot(joined.group, joined.store, 3)
    again = KeyGroupState.restored(joined.operator.schema, joined.cache, 0, joined.group.files, 3)
    list(joined.operator.process(None, again, Clock(90_000)))
    assert again.is_captured, "no later start writes all rows again"


def test_a_ttl_that_passes_before_the_first_snapshot_times_out_the_keys_after_it(tmp_path):
    before = Joined(tmp_path / "before")
    before.batch((L, "a", "x"))
    snapshot(before.group, before.store, 1)
    joined = Joined(tmp_path / "after", how="left", ttl="1 minute")
    joined.store.files = before.store.files
    joined.group = KeyGroupState.restored(joined.operator.schema, joined.cache, 0, before.group.files, 1)

    assert joined.batch(now=10_000) == []
    assert joined.batch(now=100_000) == [], "the time is in no snapshot yet"
    snapshot(joined.group, joined.store, 2)
    assert joined.group.earliest_timeout_ms == 70_000
    assert joined.batch(now=110_000) == [("a", "x", None)]


def test_a_left_join_emits_unmatched_rows_when_the_key_is_forgotten(tmp_path):
    joined = Joined(tmp_path, how="left", ttl="1 minute")
    joined.batch((L, "a", "x"), (L, "b", "y"), (L, "b", "z"), (R, "c", 1), now=0)
    assert joined.batch((R, "a", 1), now=1000) == [("a", "x", 1)]
    assert sorted(joined.batch(now=120_000)) == [("b", "y", None), ("b", "z", None)]
    assert joined.batch(now=240_000) == []


def test_a_key_waits_for_a_match_that_may_be_in_an_input(tmp_path):
    joined = Joined(tmp_path, how="left", ttl="1 minute")
    joined.batch((L, "a", "x"), (L, "b", "y"), now=0, read=0)
    assert joined.batch((R, "c", 1), now=600_000, read=0) == [], "a downtime, and a backlog"
    assert joined.batch((R, "a", 1), now=600_001, read=0) == [("a", "x", 1)]
    assert joined.batch(now=600_002, read=60_000) == [], "read up to the last moment of the ttl"
    assert joined.batch(now=600_003, read=60_001) == [("b", "y", None)]
    assert joined.batch(now=900_000, read=660_001) == []
    assert joined.batch((R, "a", 2), now=900_001, read=660_001) == [("a", "x", 2)], (
        "its ttl was over, its row came first"
    )


SIDES = st.tuples(st.sampled_from([L, R]), st.sampled_from("abc"), st.integers(0, 3))


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(batches=st.lists(st.lists(SIDES, max_size=8), max_size=6), snapshots=st.sets(st.integers(0, 5)))
def test_all_batches_together_give_what_a_plain_join_gives(tmp_path_factory, batches, snapshots):
    joined = Joined(tmp_path_factory.mktemp("cache"))
    found = Counter()
    for number, batch in enumerate(batches):
        found.update(joined.batch(*[(side, key, str(v) if side == L else v) for side, key, v in batch]))
        if number in snapshots:
            snapshot(joined.group, joined.store, number + 1)

    rows = [row for batch in batches for row in batch]
    left, right = ([(key, v) for side, key, v in rows if side == wanted] for wanted in (L, R))
    assert found == Counter((key, str(v), w) for key, v in left for other, w in right if key == other)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"on": "x"}, "left stream has no column 'x'"),
        ({"on": []}, "columns of the same name"),
        ({"on": None}, "columns of the same name"),
        ({"right": struct(k="long", paid="long")}, "'k' is string and bigint"),
        ({"right": struct(k="string", item="long")}, "both streams have a column 'item'"),
        ({"how": "full"}, "how='full' is not for two streams"),
        ({"how": "left"}, "a left join of two streams needs a ttl"),
    ],
)
def test_an_impossible_join_is_refused(tmp_path, changes, said):
    with pytest.raises(GraphInvalid, match=said):
        Joined(tmp_path, **changes)


@pytest.mark.parametrize("ttl", ["soon", "0 seconds"])
def test_a_ttl_is_a_duration(tmp_path, ttl):
    with pytest.raises(ConfigInvalid, match="ttl"):
        Joined(tmp_path, ttl=ttl)
