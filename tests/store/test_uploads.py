"""A small file is one request to an object store. Options that only delta-rs knows are left to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from spark_ckpt.errors import StoreUnreachable
from spark_ckpt.store.location import Location
from spark_ckpt.store.uploads import open_upload

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "not-for-anybodys-eyes", "AWS_REGION": "us-east-1"}


class Bucket(ThreadingHTTPServer):
    """An S3 server for uploads. `requests`: method and path of each; `refuses`: True for 403."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.requests: list[str] = []
        self.refuses = False

    @property
    def options(self) -> dict[str, str]:
        return {**KEYS, "AWS_ALLOW_HTTP": "true", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server_address[1]}"}


class Answer(BaseHTTPRequestHandler):
    server: Bucket
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        self.answer(b"")

    def do_POST(self) -> None:
        kind = "Initiate" if self.path.endswith("?uploads=") else "Complete"
        fields = "<Bucket>b</Bucket><Key>k</Key><UploadId>1</UploadId><Location>l</Location><ETag>1</ETag>"
        self.answer(f"<{kind}MultipartUploadResult>{fields}</{kind}MultipartUploadResult>".encode())

    def answer(self, content: bytes) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append(f"{self.command} {self.path}")
        self.send_response(403 if self.server.refuses else 200)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    with Bucket() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_small_file_is_one_request(bucket: Bucket) -> None:
    Location("s3://b/store", bucket.options).write_bytes("state/part.parquet", b"x" * 1000)
    assert bucket.requests == ["PUT /b/store/state/part.parquet"]


def test_a_large_file_is_a_multipart_upload(bucket: Bucket) -> None:
    Location("s3://b/store", bucket.options).write_bytes("part.parquet", b"x" * (9 << 20))
    assert len(bucket.requests) > 2
    assert bucket.requests[0] == "POST /b/store/part.parquet?uploads="


def test_a_dropped_file_sends_nothing(bucket: Bucket) -> None:
    upload = open_upload("s3://b/store", bucket.options, "part.parquet")
    assert upload is not None
    upload.write(b"x")
    del upload
    assert bucket.requests == []


def test_a_refused_upload_is_an_outage_without_secrets(bucket: Bucket) -> None:
    bucket.refuses = True
    with pytest.raises(StoreUnreachable) as refused:
        Location("s3://b/store", bucket.options).write_bytes("part.parquet", b"x")
    assert "part.parquet" in str(refused.value)
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in str(refused.value)


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        ("r2://b/store", KEYS),
        ("s3://b/store", {**KEYS, "AWS_S3_LOCKING_PROVIDER": "dynamodb"}),
        ("s3://b/store", {**KEYS, "max_retries": "1"}),
    ],
    ids=["another kind of store", "an option of delta-rs", "retries"],
)
def test_options_that_obstore_might_not_know_are_left_to_delta_rs(uri: str, options: dict[str, str]) -> None:
    assert open_upload(uri, options, "part.parquet") is None


def test_a_profile_is_left_to_delta_rs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert open_upload("s3://b/of-the-machine", {"AWS_REGION": "us-east-1"}, "part.parquet") is not None
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text("[default]\n")
    assert open_upload("s3://b/of-a-profile", {"AWS_REGION": "us-east-1"}, "part.parquet") is None


@pytest.mark.parametrize("option", ["timeout", "connect_timeout", "aws_allow_http", "proxy_url", "user_agent"])
def test_options_of_the_client_are_used(option: str) -> None:
    value = {"aws_allow_http": "true", "proxy_url": "http://127.0.0.1:1"}.get(option, "5s")
    assert open_upload("s3://b/store", {**KEYS, option: value}, "part.parquet") is not None


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        ("gs://b/store", {"google_skip_signature": "true"}),
        ("abfss://c@account.dfs.core.windows.net/store", {"azure_storage_account_key": "YQ=="}),
        ("az://c/store", {"azure_storage_account_name": "account", "azure_storage_account_key": "YQ=="}),
    ],
)
def test_other_clouds_use_the_options_of_delta_rs(uri: str, options: dict[str, str]) -> None:
    assert open_upload(uri, options, "part.parquet") is not None
