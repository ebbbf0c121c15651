from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from spark_ckpt_delta import DeltaSink, DeltaSource
from spark_ckpt_files.listing import Directory

from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.place import local_path, place_of
from spark_ckpt.store.existing import existing_store
from spark_ckpt.store.store import Store

ALLOWED = [
    "a b", " a ", "a#b", "a?b", "a+b&c=d", "it's", 'say "x"', "ü-名", "a:b", "a;b,c", "50%", "a%zz", "[x]{y}*", "x|y^z", "~$!",
    "a`b", "<>", "..a", "\u2028",
]  # fmt: skip
REFUSED = ["a%20b", "a%2Fb", "%c3%bc", "a\\b", "a\tb", "a\nb", "a\x7fb"]


def test_a_path_has_one_spelling_for_all_links_and_dots(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path)
    spellings = [
        "real",
        "./link",
        str(tmp_path / "link" / ".." / "real"),
        f"file://{tmp_path}/link",
        f"{tmp_path}/real/",
    ]
    assert {place_of(each) for each in spellings} == {str((tmp_path / "real").resolve())}


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("s3a://bucket/t/", "s3://bucket/t"),
        ("s3://key:secret@bucket/t?region=x", "s3://bucket/t"),
        ("abfss://box@account.dfs.core.windows.net/t", "abfss://box@account.dfs.core.windows.net/t"),
        ("hdfs://name:9000/t", "hdfs://name:9000/t"),
    ],
)
def test_a_uri_keeps_its_address_and_loses_options_and_secrets(uri, place):
    assert place_of(uri) == place


@pytest.mark.parametrize("name", ALLOWED)
def test_a_store_opens_again_at_every_path_that_is_not_refused(tmp_path, name):
    store = Store.open(str(tmp_path / name / "store"), "orders")
    assert existing_store((tmp_path / name / "store").as_uri()).id == store.id
    assert [path.name for path in tmp_path.iterdir()] == [name]


OPENED = [lambda path: Store.open(path, "orders"), existing_store, DeltaSink, DeltaSource]


@pytest.mark.parametrize("opened", OPENED)
def test_a_path_that_is_no_text_or_empty_is_refused_with_advice(tmp_path, monkeypatch, opened):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigInvalid, match=r"write a path or URL as text: str\("):
        opened(tmp_path / "x")
    with pytest.raises(ConfigInvalid, match="is empty"):
        opened("")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("opened", OPENED)
def test_a_path_that_deltalake_reads_as_another_one_is_refused_before_any_change(tmp_path, name, opened):
    for path in (str(tmp_path / name / "x"), (tmp_path / name / "x").as_uri()):
        with pytest.raises(ConfigInvalid) as refused:
            opened(path)
        assert refused.value.context == {"path": ascii(path)}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", REFUSED)
def test_deltalake_still_opens_no_table_at_a_path_that_is_refused(tmp_path, name):
    with pytest.raises(DeltaError):
        DeltaTable.create(str(tmp_path / name), pa.schema([("id", pa.int64())]))
        DeltaTable(str(tmp_path / name))


def test_a_path_that_is_no_utf8_is_refused(tmp_path):
    with pytest.raises(ConfigInvalid):
        Store.open(str(tmp_path / "a\udc80"), "orders")


@pytest.mark.parametrize("name", ["a%20b", "a%2520b"])
def test_an_object_stores_url_is_refused_if_it_is_encoded_twice(name):
    if name == "a%20b":
        assert DeltaSink(f"s3://bucket/{name}").describe()["path"] == f"s3://bucket/{name}"
    else:
        with pytest.raises(ConfigInvalid):
            DeltaSink(f"s3://bucket/{name}")


@pytest.mark.parametrize(
    "uri", ["file:/data/a b", "file:///data/a%20b", "file://localhost/data/a%20b", "FILE:///data/a b", "/data/a b"]
)
def test_every_spelling_of_a_local_place_is_the_same_folder(uri):
    assert local_path(uri) == Path("/data/a b")
    assert place_of(uri) == "/data/a b"


@pytest.mark.parametrize("name", [*ALLOWED, *REFUSED])
def test_an_inbox_is_read_at_any_path(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "a.json").write_text("{}")
    for path in (str(tmp_path / name), (tmp_path / name).as_uri()):
        assert [file.name for file in Directory(path).files()] == ["a.json"]
