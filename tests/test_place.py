import pytest

from spark_ckpt.connector_parts.place import place_of


def test_a_path_has_one_spelling_whatever_links_and_dots_lead_to_it(tmp_path, monkeypatch):
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
def test_a_uri_keeps_what_is_an_address_and_loses_options_and_secrets(uri, place):
    assert place_of(uri) == place
