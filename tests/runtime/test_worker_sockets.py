"""Spark and its Python workers on one host talk over Unix sockets."""

from __future__ import annotations

from spark_ckpt.spark_internals.python_workers import unix_sockets

ENABLED, FOLDER = "spark.python.unix.domain.socket.enabled", "spark.python.unix.domain.socket.dir"


def test_workers_are_reached_by_unix_sockets_in_the_folder() -> None:
    assert unix_sockets("/tmp") == {ENABLED: "true", FOLDER: "/tmp"}


def test_a_folder_whose_path_spark_would_refuse_leaves_it_at_tcp() -> None:
    assert unix_sockets("/" + "a" * 60)[FOLDER] == "/" + "a" * 60
    assert unix_sockets("/" + "a" * 61) == {}


def test_a_path_is_measured_in_bytes() -> None:
    assert unix_sockets("/" + "ä" * 31) == {}
