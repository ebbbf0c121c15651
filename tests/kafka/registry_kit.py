"""A schema registry over HTTP with the requests of Confluent's clients, which a test can stop."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


class RegistryServer:
    """Schemas by number and by subject. `failing`: an HTTP status that every request gets."""

    def __init__(self) -> None:
        self.schemas: list[dict] = []
        self.subjects: dict[str, list[int]] = {}
        self.failing = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments):
                pass

            def do_GET(self):
                self.answer(*server.got(self.path.partition("?")[0].strip("/").split("/")))

            def do_POST(self):
                given = self.rfile.read(int(self.headers["content-length"]))
                body = json.loads(given) if "json" in self.headers["content-type"] else given  # a form asks for a token
                self.answer(*server.posted(self.path.partition("?")[0].strip("/").split("/"), body))

            def answer(self, status, body):
                data = json.dumps(body).encode()
                self.send_response(server.failing or status)
                self.send_header("content-type", "application/vnd.schemaregistry.v1+json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def got(self, path):
        if path[:2] == ["schemas", "ids"] and path[2].isdigit() and 0 < int(path[2]) <= len(self.schemas):
            return 200, self.schemas[int(path[2]) - 1]
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def posted(self, path, body):
        kept = {name: body[name] for name in ("schema", "schemaType", "references") if name in body}
        if kept not in self.schemas:
            self.schemas.append(kept)
        number = self.schemas.index(kept) + 1
        subject = path[1]
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        registered = {"id": number, "subject": subject, "version": versions.index(number) + 1, **kept}
        return 200, registered


def _generated():
    """Return protoc's output for two messages, one with a number, an enum, a list, a map, a nested message and bytes."""
    one, many, file = 1, 3, descriptor_pb2.FileDescriptorProto(name="orders.proto", package="shop", syntax="proto3")
    customer = file.message_type.add(name="Customer")
    customer.field.add(name="name", number=1, type=9, label=one)
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="BOUGHT", number=0)
    kind.value.add(name="SOLD", number=1)
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=3, label=one)
    order.field.add(name="kind", number=2, type=14, label=one, type_name=".shop.Kind")
    order.field.add(name="tags", number=3, type=9, label=many)
    order.field.add(name="by", number=4, type=11, label=many, type_name=".shop.Order.ByEntry")
    order.field.add(name="customer", number=5, type=11, label=one, type_name=".shop.Customer")
    order.field.add(name="data", number=6, type=12, label=one)
    entry = order.nested_type.add(name="ByEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=one)
    entry.field.add(name="value", number=2, type=5, label=one)
    votes = file.message_type.add(name="Votes")
    votes.field.add(name="by", number=1, type=11, label=many, type_name=".shop.Votes.ByEntry")
    vote = votes.nested_type.add(name="ByEntry")
    vote.CopyFrom(entry)
    vote.field[0].type = 8
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    names = ("shop.Order", "shop.Votes")
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names]


Order, Votes = _generated()
"""`Votes` has a map with boolean keys."""
