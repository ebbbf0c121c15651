"""The live page answers requests about stores under its own names only, and for no foreign scripts."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from http.client import HTTPConnection
from urllib.parse import urlencode, urlsplit

import pytest
from page_world import HOSTILE, Elements, reported_world

from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.observability.page.server import state_at
from spark_ckpt.observability.page.serving import PageServer
from spark_ckpt.store.location import Location
from spark_ckpt.store.stage_folder import Stages, record_stages
from tests.cli.cli_world import three_epochs
from tests.store.store_world import OPERATOR, World


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return reported_world(tmp_path_factory.mktemp("told") / "store")


@pytest.fixture(scope="module")
def server(world, tmp_path_factory):
    other = three_epochs(tmp_path_factory.mktemp("other") / "store")
    missing = str(tmp_path_factory.mktemp("none") / "store")
    serving = PageServer([world.store.location.uri, other.store.location.uri, missing])
    serving.start()
    yield serving
    serving.close()


def asked(server, path, **headers):
    """Return (status, headers, body)."""
    where = urlsplit(server.url)
    connection = HTTPConnection(where.hostname, where.port, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def answered(server, path):
    status, _, body = asked(server, path)
    return status, json.loads(body)


def test_several_jobs_are_listed_although_one_cannot_be_read(server):
    status, jobs = answered(server, "/api/jobs")
    assert (status, [each.get("latest") for each in jobs]) == (200, [3, 3, None])
    assert "CKPT_STORE_FOREIGN" in jobs[2]["error"]


def test_a_folder_whose_stages_cannot_be_read_leaves_the_page_of_the_other_stores(tmp_path):
    """The page listens before it reads the folder, and shows the stages once they can be read."""
    main, other = (three_epochs(tmp_path / name).store.location for name in ("program/main", "other"))
    stages = main.local.parent / "stages.json"
    stages.write_text("{")
    watching = PageServer([str(stages.parent), other.uri])
    watching.start()
    try:
        unread, second = answered(watching, "/api/jobs")[1]
        assert ("stages.json" in unread["error"], second["store"]) == (True, other.uri)
        stages.unlink()
        record_stages(Location(str(stages.parent)), Stages(job="program", stages={"main": (), "model": ("main",)}))
        jobs = answered(watching, "/api/jobs")[1]
        assert [each["store"] for each in jobs] == [main.uri, str(stages.parent / "model"), other.uri]
        assert answered(watching, "/api/jobs/2/epochs/2/restore")[1]["call"] == "job.start(restore=2)"
        assert answered(watching, "/api/jobs/0/epochs/2/restore")[1]["call"] == "job.start_stages('main', restore=2)"
    finally:
        watching.close()


def test_a_page_is_served_although_the_programs_output_is_closed(world, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)  # as of a daemon that has closed it
    watching = PageServer([world.store.location.uri])
    watching.start()
    try:
        assert asked(watching, "/api/jobs")[0] == 200
    finally:
        watching.close()


def test_new_epochs_show_on_an_open_page(server, tmp_path_factory):
    world = three_epochs(tmp_path_factory.mktemp("moving") / "store")
    watching = PageServer([world.store.location.uri])
    watching.start()
    try:
        before = answered(watching, "/api/jobs")[1][0]["latest"]
        world.epoch({"z": 1})
        assert (before, answered(watching, "/api/jobs")[1][0]["latest"]) == (3, 4)
    finally:
        watching.close()


def test_the_server_answers_for_an_epoch_its_restore_and_its_state(server):
    assert answered(server, "/api/jobs/0/epochs/2")[1]["epoch"] == 2
    assert answered(server, "/api/jobs/0/epochs/1/restore")[1]["call"] == "job.start(restore=1)"
    query = urlencode({"operator": OPERATOR, "key": "k=b", "before": 1, "after": 2})
    assert answered(server, f"/api/jobs/0/state?{query}")[1]["rows"][0]["after"] == {"v": 3}


def test_a_browser_reads_every_digit_of_a_large_integer(tmp_path):
    """It reads a number as a 64-bit float, in which these two are equal."""
    world = World(tmp_path / "store")
    world.begin()
    for value in (2**53, 2**53 + 1):
        world.snapshot({"a": value})
        manifest = world.manifest()
        world.commit(manifest)
        world.store.materialize(manifest)
    [row] = json.loads(json.dumps(state_at(world.store, OPERATOR, 1, 2, {})["rows"]), parse_int=float)
    assert (row["before"], row["after"]) == ({"v": str(2**53)}, {"v": str(2**53 + 1)})


@pytest.mark.parametrize(
    "path",
    [
        "/api/jobs/0/epochs/99",
        "/api/jobs/7/epochs/1",
        "/api/jobs/0/state?operator=nobody&before=1&after=2",
        f"/api/jobs/0/state?operator={OPERATOR}&before=x&after=2",
        f"/api/jobs/0/state?operator={OPERATOR}&before=1&after=2&key=novalue",
        "/api/jobs/0/state?operator=../../epochs&before=1&after=2",
    ],
)
def test_a_wrong_request_is_answered_with_a_typed_error(server, path):
    status, body = answered(server, path)
    assert status == 400
    assert body["condition"].startswith("CKPT_")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost.evil:4141"]
)
def test_a_request_under_another_name_is_refused(server, host):
    """A foreign page may point its own name to this address; the browser then sends that name."""
    status, _, body = asked(server, "/api/jobs", Host=host)
    assert (status, "epochs" in body) == (421, False)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:4141", "[::1]:80"])
def test_a_request_under_this_machines_own_names_is_answered(server, host):
    assert asked(server, "/api/jobs", Host=host)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_the_server_accepts_no_other_method(server, method):
    request = urllib.request.Request(f"{server.url}api/jobs", method=method, data=b"{}")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=30)
    assert caught.value.code == 405
    caught.value.close()


@pytest.mark.parametrize("path", ["/", "/page.js", "/page.css", "/api/jobs", "/nothing"])
def test_every_answer_forbids_foreign_scripts_frames_and_content_sniffing(server, path):
    _, headers, _ = asked(server, path)
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert (headers["x-content-type-options"], headers["cross-origin-resource-policy"]) == ("nosniff", "same-origin")
    assert not [name for name in headers if name.lower().startswith("access-control")]


def test_the_page_loads_nothing_from_other_hosts(server):
    for path in ("/", "/page.js", "/page.css"):
        body = (
            asked(server, path)[2].replace("http://www.w3.org/2000/svg", "").replace("http://www.w3.org/1999/xhtml", "")
        )
        assert "http://" not in body
        assert "https://" not in body
    loaded = [
        value
        for _, given in Elements(asked(server, "/")[2]).elements
        for name, value in given.items()
        if name in ("src", "href")
    ]
    assert loaded == ["page.css", "page.js"]


def test_no_files_of_the_machine_are_served(server):
    for path in ("/../pyproject.toml", "/assets/page.html", "/%2e%2e/%2e%2e/etc/passwd", "/page.js/../server.py"):
        assert asked(server, path)[0] == 404


def test_hostile_texts_are_data_and_nothing_else(server):
    _, headers, body = asked(server, "/api/jobs/0/epochs/3")
    assert headers["content-type"].startswith("application/json")
    assert json.loads(body)["sources"][0]["cursor"]["text"] == HOSTILE


def test_the_page_answers_under_a_configured_name(world):
    named = PageServer([world.store.location.uri], names=["Ckpt.Example"])
    named.start()
    try:
        assert asked(named, "/api/jobs", Host="ckpt.example")[0] == 200
    finally:
        named.close()


def test_an_address_in_use_is_reported(server):
    with pytest.raises(ConfigInvalid, match="cannot be served at 127"):
        PageServer([], "127.0.0.1", urlsplit(server.url).port)


@pytest.mark.parametrize("host", ["192.0.2.1", "jobs..example"])
def test_an_address_of_another_machine_is_refused_with_advice(host):
    with pytest.raises(ConfigInvalid, match="cannot be served") as refused:
        PageServer([], host, 0)
    assert refused.value.hint.endswith("or an address of this machine")
