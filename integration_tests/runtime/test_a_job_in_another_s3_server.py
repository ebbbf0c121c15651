"""A job on S3Proxy, a second S3 server, which is killed and started again during the job; and a check of its conditional writes."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from runtime_kit import ENOUGH_S, Bench, Heard, drain, totals
from spark_ckpt_delta import DeltaSink

import spark_ckpt as ckpt
from integration_tests.s3proxy import BUCKET, S3Proxy, running_s3proxy
from spark_ckpt.cli import store_check
from spark_ckpt.cli.app import exit_code
from spark_ckpt.delta_files import commit_name
from spark_ckpt.store import delta_log
from spark_ckpt.store.location import Location
from spark_ckpt.store.store import Store

STORE, TABLE = f"s3://{BUCKET}/orders/store", f"s3://{BUCKET}/orders/totals"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Proxy]:
    with running_s3proxy(tmp_path_factory.mktemp("s3") / "proxy") as running:
        yield running


def rows(options: dict[str, str]) -> list[tuple[str, int]]:
    table = DeltaTable(TABLE, storage_options=options)
    found = QueryBuilder().register("t", table).execute("select k, total from t").read_all()
    return sorted(zip(found["k"].to_pylist(), found["total"].to_pylist(), strict=True))


def test_of_two_writers_of_one_commit_the_second_is_refused_by_the_server(server: S3Proxy) -> None:
    place = Location(f"s3://{BUCKET}/two-writers", server.options)
    schema = pa.schema([("n", pa.int64())])
    delta_log.create_table(place, schema, "two writers")
    first, second = (DeltaTable(place.uri, storage_options=server.options) for _ in range(2))
    action = delta_log.added("a.parquet", 1, "{}", data_change=True)
    assert delta_log.commit(first, place, [action], schema) == 1
    written = place.read_bytes(f"_delta_log/{commit_name(1)}")
    with pytest.raises(delta_log.CommitLost):
        delta_log.commit(second, place, [action], schema)
    assert place.read_bytes(f"_delta_log/{commit_name(1)}") == written


def test_the_doctor_refuses_a_server_that_looks_first_and_writes_then(
    server: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_check, "RACES", 400)  # one race of ten has two winners: the check ends with the first one
    [absent, writes] = store_check.store_findings(f"s3://{BUCKET}/nothing-yet", server.options)
    assert absent.status == "ok"
    assert writes.status == "fail"
    assert "two writers both committed one version" in writes.detail


@pytest.mark.long
def test_a_job_waits_for_its_killed_server_and_continues_exactly(bench: Bench, server: S3Proxy) -> None:
    options = server.options

    def job() -> ckpt.Job:
        settings = {"interval": "1 second", "trigger": "10 ms", "key_groups": 4}
        made = ckpt.Job(bench.spark, "orders", STORE, storage_options=options, **settings)
        totals(made.source("in", bench.source())).to(DeltaSink(TABLE, storage_options=options))
        return made

    heard = Heard()
    bench.put(("a", 1), ("b", 2))
    job_under_way = job()
    job_under_way.addListener(heard)
    run = job_under_way.start()
    heard.wait("published")
    server.kill()
    bench.put(("a", 10))
    published = len(heard.of("published"))
    server.start()
    heard.wait("published", published + 1)
    run.stop()
    assert run.awaitTermination(ENOUGH_S)
    assert rows(options) == [("a", 1), ("a", 11), ("b", 2)]

    bench.put(("b", 20))
    epoch = drain(job()).epochs()[-1].epoch
    assert rows(options) == [("a", 1), ("a", 11), ("b", 2), ("b", 22)]
    state = ckpt.read_state(STORE, "totals", storage_options=options).sort_by("k")
    assert state["total"].to_pylist() == [11, 22]
    store = Store.open(STORE, "orders", options)
    for brief in store.log.state().epochs:
        store.verify(store.log.manifest(brief.epoch), deep=True)
    words = [word for name, value in options.items() for word in ("--storage-option", f"{name}={value}")]
    assert exit_code(["show", STORE, str(epoch), *words]) == 0
