"""Content of a fresh checkpoint with which Spark's own sources begin at a cut."""

from spark_ckpt.connector import Seed
from spark_ckpt.driver.query.checkpoint_seed import LastBatch, seed_files
from spark_ckpt.plan.graph import OperatorNode, SourceNode, UnionNode
from spark_ckpt.plan.plan_order import PlanOrder

A, B = (SourceNode(name, None, None) for name in "ab")
ONE = PlanOrder.of(A)
TWO = PlanOrder.of(UnionNode((A, B), None))
LAST = LastBatch("{}")


def operator(above):
    return OperatorNode(above, "operator", (), None)


def test_each_source_has_a_line_after_the_empty_one_of_the_control_source():
    files = seed_files([None, Seed('{"a":1}'), Seed("7")], TWO, LAST, "id")

    assert files["offsets/-1"] == 'v1\n{}\n-\n{"a":1}\n7'


def test_the_batch_before_the_last_ended_in_the_same_place():
    files = seed_files([None, Seed("7")], ONE, LAST, "id")

    assert files["offsets/-2"] == files["offsets/-1"]


def test_only_the_last_batch_is_committed_so_that_the_first_to_run_is_number_0():
    files = seed_files([None, Seed("7")], ONE, LAST, "id")

    assert [path for path in files if path.startswith("commits/")] == ["commits/-1"]


def test_with_state_the_first_batch_to_run_follows_the_epochs_last_one():
    files = seed_files([None, Seed("7")], ONE, LastBatch("{}", 4, "a commit"), "id")

    assert files["commits/4"] == "a commit"
    assert files["offsets/3"] == files["offsets/4"] == "v1\n{}\n-\n7"


def test_a_sources_own_files_are_in_the_folder_with_its_number():
    files = seed_files([None, None, Seed("7", {"0": "v1\n5"})], TWO, LAST, "id")

    assert files["sources/2/0"] == "v1\n5"


def test_the_control_source_has_a_line_for_each_operator_and_one_folder():
    order = PlanOrder.of(operator(UnionNode((operator(A), B), None)))
    assert order.inputs == (None, None, A, B)

    files = seed_files([None, None, None, Seed("7", {"0": "v1\n5"})], order, LAST, "id")

    assert files["offsets/-1"] == "v1\n{}\n-\n-\n-\n7"
    assert files["sources/2/0"] == "v1\n5"


def test_a_source_that_two_branches_read_has_two_lines_and_the_folder_of_the_first():
    order = PlanOrder.of(A, operator(A), operator(UnionNode((B, A), None)))
    assert order.inputs == (A, None, A, None, B, A)
    assert order.numbers == [0, 4]
    a, b = Seed("7", {"0": "v1\n5"}), Seed("8", {"0": "v1\n6"})

    files = seed_files([a, None, a, None, b, a], order, LAST, "id")

    assert files["offsets/-1"] == "v1\n{}\n7\n-\n7\n-\n8\n7"
    assert {path: text for path, text in files.items() if path.startswith("sources/")} == {
        "sources/0/0": "v1\n5",
        "sources/2/0": "v1\n6",
    }


def test_the_query_has_an_id_without_which_spark_refuses_the_offsets():
    assert seed_files([None, Seed("7")], ONE, LAST, "0b1")["metadata"] == '{"id": "0b1"}'
