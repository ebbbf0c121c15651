"""What a fresh checkpoint holds so that Spark's own sources begin at a cut."""

from spark_ckpt.connector import Seed
from spark_ckpt.runtime.checkpoint_seed import seed_files


def test_each_source_has_its_line_and_the_control_source_none():
    files = seed_files([None, Seed('{"a":1}'), Seed("7")], "{}", "id")

    assert files["offsets/-1"] == 'v1\n{}\n-\n{"a":1}\n7\n-'


def test_the_batch_before_the_last_ended_in_the_same_place():
    files = seed_files([Seed("7")], "{}", "id")

    assert files["offsets/-2"] == files["offsets/-1"]


def test_only_the_last_batch_is_committed_so_that_the_first_to_run_is_number_0():
    files = seed_files([Seed("7")], "{}", "id")

    assert [path for path in files if path.startswith("commits/")] == ["commits/-1"]


def test_a_sources_own_files_are_in_the_folder_with_its_number():
    files = seed_files([None, Seed("7", {"0": "v1\n5"})], "{}", "id")

    assert files["sources/1/0"] == "v1\n5"


def test_the_query_has_an_id_without_which_spark_refuses_the_offsets():
    assert seed_files([Seed("7")], "{}", "0b1")["metadata"] == '{"id": "0b1"}'
