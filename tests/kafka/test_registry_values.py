"""Values of Confluent's own serialisers are read as typed columns, and the reverse."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,  # noqa: F401 - registers its messages
    field_mask_pb2,  # noqa: F401
    message_factory,
    struct_pb2,
    timestamp_pb2,  # noqa: F401
    wrappers_pb2,  # noqa: F401
)
from pyspark.sql import types as T
from pyspark.sql.types import StructType
from registry_kit import Order, RegistryServer, Votes
from spark_ckpt_kafka.protobuf_columns import as_dict, filled
from spark_ckpt_kafka.registry import Registry
from spark_ckpt_kafka.values import Avro, JsonSchema, Protobuf, decoded_batch, encoded_batch

from spark_ckpt.errors import BadRecord, ConfigInvalid, SourceInvalid
from spark_ckpt.spark_internals.arrow_types import arrow_schema_of

WRITER = json.dumps({"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "secret", "type": "string"}, {"name": "amount", "type": ["null", "double"]},
]})  # fmt: skip
READER = json.dumps({"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "amount", "type": ["null", "double"]},
    {"name": "currency", "type": "string", "default": "EUR"},
]})  # fmt: skip
JSON = json.dumps(
    {
        "title": "Order",
        "type": "object",
        "required": ["id"],
        "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
    }
)
READ = StructType().add("id", "long").add("name", "string")
CONTEXT = SerializationContext("orders", MessageField.VALUE)


@pytest.fixture
def server():
    running = RegistryServer()
    yield running
    running.close()


def client(server):
    return SchemaRegistryClient({"url": server.url})


def decoded(values, *data):
    """Value and error of each."""
    places = [
        pa.array(["orders"] * len(data)),
        pa.array(["2"] * len(data)),
        pa.array([str(at) for at in range(len(data))]),
    ]
    rows = decoded_batch(values, pa.array(data, pa.binary()), places).to_pylist()
    return [row["value"] for row in rows], [row["error"] for row in rows]


def test_avro_of_an_older_writer_is_read_by_the_readers_schema(server):
    data = AvroSerializer(client(server), WRITER)({"id": 7, "secret": "x", "amount": 2.5}, CONTEXT)
    values, errors = decoded(Avro(server.url, READER), data, None)
    assert values == [{"id": 7, "amount": 2.5, "currency": "EUR"}, None]
    assert errors == [None, None]


def test_json_is_checked_against_its_schema(server):
    data = JSONSerializer(JSON, client(server))({"id": 7, "name": "ada"}, CONTEXT)
    described = JsonSchema(server.url, JSON, READ, on_error="null")
    values, errors = decoded(described, data, data[:5] + b'{"name": "nobody"}')
    assert values == [{"id": 7, "name": "ada"}, None]
    assert "id" in errors[1]


ANYTHING = json.dumps({"title": "Order", "type": "object"})


@pytest.mark.parametrize(
    ("kind", "member"),
    [
        (T.LongType(), "1.5"),
        (T.StructType().add("a", "integer").add("b", T.ArrayType(T.ShortType())), '{"a": 1, "b": [1, 2.5]}'),
        (T.MapType(T.StringType(), T.IntegerType()), '{"a": 0.5}'),
        (T.LongType(), '"7"'),
        (T.IntegerType(), "3000000000"),
        (T.DoubleType(), "true"),
        (T.FloatType(), "1e39"),
        (T.TimestampType(), "1700000000"),
        (T.DateType(), "19000"),
        (T.ArrayType(T.StringType()), '"abc"'),
        (T.StringType(), r'"\ud800"'),
    ],
)
def test_a_value_that_no_column_can_hold_is_rejected_alone(server, kind, member):
    """Arrow would cut a fraction off, take a number for microseconds, or refuse the whole batch without a place."""
    schema = StructType().add("id", "long").add("n", kind)
    good = JSONSerializer(ANYTHING, client(server))({"id": 7}, CONTEXT)
    bad = good[:5] + f'{{"id": 8, "n": {member}}}'.encode()
    values, errors = decoded(JsonSchema(server.url, ANYTHING, schema, on_error="null"), good, bad, good)
    assert values == [{"id": 7, "n": None}, None, {"id": 7, "n": None}]
    assert [error is None for error in errors] == [True, False, True]

    with pytest.raises(BadRecord) as caught:
        decoded(JsonSchema(server.url, ANYTHING, schema), good, bad)
    assert caught.value.context["record"] == "orders/2/1"


def test_the_largest_float_of_java_is_read(server):
    """Its text is a larger number."""
    data = JSONSerializer(ANYTHING, client(server))({"n": 3.4028235e38}, CONTEXT)
    [[value], _] = decoded(JsonSchema(server.url, ANYTHING, StructType().add("n", "float")), data)
    assert value == {"n": float(np.finfo(np.float32).max)}


def test_avro_of_every_logical_type_is_read(server):
    types = {
        "id": ({"type": "string", "logicalType": "uuid"}, "a91cbf81-4326-4e5f-b9e5-d754426b6117"),
        "ms": ({"type": "int", "logicalType": "time-millis"}, 45_296_789),
        "us": ({"type": "long", "logicalType": "time-micros"}, 45_296_789_012),
        "ids": ({"type": "array", "items": {"type": "string", "logicalType": "uuid"}}, ["a91cbf81-4326-4e5f-b9e5-d754426b6117"]),
        "by": ({"type": "map", "values": "int"}, {"x": 2}),
    }  # fmt: skip
    fields = [{"name": name, "type": kind} for name, (kind, _) in types.items()]
    schema = json.dumps({"type": "record", "name": "R", "fields": fields})
    given = {name: value for name, (_, value) in types.items()}
    [[value], _] = decoded(Avro(server.url, schema), AvroSerializer(client(server), schema)(given, CONTEXT))
    assert value == given | {"by": [("x", 2)]}


def test_a_time_that_the_writer_left_a_number_is_an_error_and_not_a_day_of_1970(server):
    def schema(kind):
        return json.dumps({"type": "record", "name": "R", "fields": [{"name": "at", "type": kind}]})

    data = AvroSerializer(client(server), schema("long"))({"at": 1_700_000_000_000}, CONTEXT)
    with pytest.raises(BadRecord, match="its column is a time"):
        decoded(Avro(server.url, schema({"type": "long", "logicalType": "timestamp-millis"})), data)


def in_protobuf(server, message):
    serialise = ProtobufSerializer(type(message), client(server), {"use.deprecated.format": False})
    return serialise(message, CONTEXT)


def test_protobuf_is_read_field_by_field_with_enums_and_nested_messages(server):
    message = Order(id=7, kind=1, tags=["a"], by={"x": 2}, customer={"name": "ada"})
    [[value, empty], _] = decoded(
        Protobuf(server.url, Order), in_protobuf(server, message), in_protobuf(server, Order())
    )
    assert value == {"id": 7, "kind": "SOLD", "tags": ["a"], "by": [("x", 2)], "customer": {"name": "ada"}, "data": b""}
    assert (empty["id"], empty["kind"], empty["customer"]) == (0, "BOUGHT", None)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"\x01" + data[1:], "BadRecord|magic|Magic|Unknown|unknown"),
        (lambda data: data[:1] + (999).to_bytes(4, "big") + data[5:], "not in the registry"),
        (lambda data: data[:6], "cannot be decoded"),
        (lambda data: b"", "cannot be decoded"),
    ],
    ids=["no magic byte", "unknown schema", "cut", "empty"],
)
def test_a_value_that_cannot_be_decoded_is_an_error_with_its_place_or_null_with_the_reason(server, damage, message):
    good = AvroSerializer(client(server), WRITER)({"id": 7, "secret": "x", "amount": 2.5}, CONTEXT)
    with pytest.raises(BadRecord) as caught:
        decoded(Avro(server.url, READER), good, damage(good))
    assert caught.value.context["record"] == "orders/2/1"

    values, errors = decoded(Avro(server.url, READER, on_error="null"), damage(good), good)
    assert [value is None for value in values] == [True, False]
    assert errors[0].startswith("[CKPT_BAD_RECORD]")


def test_an_outage_of_the_registry_is_no_bad_record_for_any_policy(server):
    good = AvroSerializer(client(server), WRITER)({"id": 7, "secret": "x", "amount": 2.5}, CONTEXT)
    fast = Registry(server.url, {"max.retries": 0})
    server.failing = 503
    with pytest.raises(ConnectionError, match="registry"):
        decoded(Avro(fast, READER, on_error="null"), good)


def test_a_refused_login_of_the_registry_is_reported(server):
    good = AvroSerializer(client(server), WRITER)({"id": 7, "secret": "x", "amount": 2.5}, CONTEXT)
    server.failing = 401
    for on_error in ("fail", "null"):  # else each record would count as a bad one
        with pytest.raises(SourceInvalid, match="refuses"):
            decoded(Avro(Registry(server.url, {"max.retries": 0}), READER, on_error=on_error), good)


@pytest.mark.parametrize(("status", "passes"), [(400, False), (405, False), (408, True), (422, False), (429, True)])
def test_only_an_answer_that_may_pass_counts_as_an_outage_of_the_registry(server, status, passes):
    good = AvroSerializer(client(server), WRITER)({"id": 7, "secret": "x", "amount": 2.5}, CONTEXT)
    server.failing = status
    with pytest.raises(ConnectionError if passes else SourceInvalid):
        decoded(Avro(Registry(server.url, {"max.retries": 0}), READER, on_error="null"), good)


@pytest.mark.parametrize(
    ("status", "answer", "kind"),
    [
        (401, {"error": "invalid_client"}, SourceInvalid),
        (404, {"message": "no such page"}, SourceInvalid),
        (503, {}, ConnectionError),
    ],
    ids=["refused", "another server", "down"],
)
def test_a_token_that_the_registrys_client_does_not_get_is_no_bad_record(server, status, answer, kind):
    good = AvroSerializer(client(server), WRITER)({"id": 7, "secret": "x", "amount": 2.5}, CONTEXT)
    server.failing, server.posted = status, lambda path, body: (status, answer)
    login = {
        "bearer.auth.credentials.source": "OAUTHBEARER",
        "bearer.auth.issuer.endpoint.url": f"{server.url}/token",
        "bearer.auth.client.id": "me",
        "bearer.auth.client.secret": "x",
        "bearer.auth.scope": "read",
        "bearer.auth.logical.cluster": "c",
        "bearer.auth.identity.pool.id": "p",
        "max.retries": 0,
    }
    with pytest.raises(kind, match="registry"):
        decoded(Avro(Registry(server.url, login), READER, on_error="null"), good)


@pytest.mark.parametrize(
    ("status", "kind", "advice"),
    [
        (404, BadRecord, "under the subject orders-value"),
        (409, SourceInvalid, "compatibility rule"),
        (422, SourceInvalid, "as the registry's answer says"),
    ],
    ids=["unknown", "incompatible", "invalid"],
)
def test_a_written_schema_that_the_registry_lacks_or_refuses_is_reported_with_advice(server, status, kind, advice):
    server.failing = status
    values = Avro(Registry(server.url, {"max.retries": 0}), READER, auto_register=status != 404)
    with pytest.raises(kind) as caught:
        encoded_batch(values, "orders-value", pa.array([{"id": 7, "amount": 2.5, "currency": "USD"}]))
    assert advice in caught.value.hint


def test_official_deserialisers_read_the_written_values(server):
    rows = pa.array([{"id": 7, "amount": 2.5, "currency": "USD"}, None])
    avro, nothing = encoded_batch(Avro(server.url, READER), "orders-value", rows).to_pylist()
    assert AvroDeserializer(client(server))(avro, CONTEXT) == {"id": 7, "amount": 2.5, "currency": "USD"}
    assert nothing is None
    assert list(server.subjects) == ["orders-value"]

    order = {"id": 7, "kind": "SOLD", "tags": ["a"], "by": [("x", 2)], "customer": {"name": "ada"}, "data": b"\x00\xff"}
    kind = arrow_schema_of(Protobuf(server.url, Order).columns)
    [proto] = encoded_batch(
        Protobuf(server.url, Order), "orders-value", pa.array([order], pa.struct(list(kind)))
    ).to_pylist()
    expected = Order(id=7, kind=1, tags=["a"], by={"x": 2}, customer={"name": "ada"}, data=b"\x00\xff")
    assert ProtobufDeserializer(Order, {"use.deprecated.format": False})(proto, CONTEXT) == expected


def test_maps_are_written_in_each_format_also_empty_ones(server):
    kind = StructType().add("id", "long").add("by", T.MapType(T.StringType(), T.IntegerType()))
    rows = [{"id": 7, "by": [("x", 2)]}, {"id": 8, "by": []}]
    given = pa.array(rows, pa.struct(list(arrow_schema_of(kind))))
    fields = [{"name": "id", "type": "long"}, {"name": "by", "type": {"type": "map", "values": "int"}}]
    avro = Avro(server.url, json.dumps({"type": "record", "name": "R", "fields": fields}))
    as_json = JsonSchema(server.url, ANYTHING, kind)
    for values in (avro, as_json):
        assert decoded(values, *encoded_batch(values, "orders-value", given).to_pylist())[0] == rows
    assert b'{"x":2}' in encoded_batch(as_json, "orders-value", given)[0].as_py()

    protobuf = Protobuf(server.url, Order)
    found, _ = decoded(protobuf, *encoded_batch(protobuf, "orders-value", given).to_pylist())
    assert [{"id": row["id"], "by": row["by"]} for row in found] == rows


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_json_lacks_is_refused_not_written_as_a_word_or_null(server, value):
    values = JsonSchema(server.url, ANYTHING, StructType().add("x", "double"))
    with pytest.raises(BadRecord, match="a value cannot be encoded"):
        encoded_batch(values, "orders-value", pa.array([{"x": value}]))
    assert encoded_batch(values, "orders-value", pa.array([{"x": 2.5}]))[0].as_py().endswith(b'{"x":2.5}')


def test_times_are_texts_in_json_whatever_packages_are_installed(server):
    at = dt.datetime(2024, 1, 2, 3, 4, 5, 678, dt.UTC)
    values = JsonSchema(server.url, ANYTHING, StructType().add("at", "timestamp").add("day", "date"))
    (written,) = encoded_batch(values, "orders-value", pa.array([{"at": at, "day": at.date()}])).to_pylist()
    assert json.loads(written[5:]) == {"at": "2024-01-02T03:04:05.000678+00:00", "day": "2024-01-02"}
    with pytest.raises(BadRecord, match="JSON has no bytes"):
        encoded_batch(values, "orders-value", pa.array([{"at": b"x"}]))


def test_the_advice_for_a_row_that_cannot_be_encoded_is_about_the_rows(server):
    values = Avro(server.url, json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}))
    with pytest.raises(BadRecord, match="a value cannot be encoded") as refused:
        encoded_batch(values, "orders-value", pa.array([{"id": "x"}]))
    assert refused.value.context["record"] == "orders-value"
    assert "before encoded" in refused.value.hint


@pytest.mark.parametrize(
    "made",
    [lambda kind: kind, pa.list_, lambda kind: pa.map_(pa.string(), kind), lambda kind: pa.struct([("x", kind)])],
)
def test_a_local_time_is_not_written_as_an_instant_of_the_machines_zone(made, server):
    instant = {"type": "long", "logicalType": "timestamp-micros"}
    inner = {"type": "record", "name": "X", "fields": [{"name": "x", "type": ["null", instant]}]}
    kinds = {
        "timestamp": instant,
        "list": {"type": "array", "items": instant},
        "map": {"type": "map", "values": instant},
    }
    kind = made(pa.timestamp("us"))
    field = {"name": "at", "type": ["null", kinds.get(str(kind).partition("[")[0].partition("<")[0], inner)]}
    values = Avro(server.url, json.dumps({"type": "record", "name": "R", "fields": [field]}))
    with pytest.raises(BadRecord, match="timestamp_ntz column is an instant in the schema"):
        encoded_batch(values, "orders-value", pa.array([{"at": None}], pa.struct([("at", kind)])))
    rows = pa.array([{"at": None}], pa.struct([("at", made(pa.timestamp("us", "UTC")))]))
    assert decoded(values, *encoded_batch(values, "orders-value", rows).to_pylist())[0] == [{"at": None}]


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("int", pa.array([2**31])), ("int", pa.array([1.5])), ("int", pa.array([True])), ("long", pa.array([0.5])),
        ("boolean", pa.array([5])), ("boolean", pa.array(["false"])),
        ({"type": "array", "items": "long"}, pa.array([[1.0, 1.5]])), ({"type": "map", "values": "int"}, pa.array(
            [[("a", 2**40)]], pa.map_(pa.string(), pa.int64()))),
        ("int", pa.array([Decimal("1.5")])), ("double", pa.array([2**53 + 1])), ("float", pa.array([2**24 + 1])),
        ("float", pa.array([1e300])),
        ({"type": "int", "logicalType": "date"}, pa.array([dt.datetime(2024, 1, 2, 3, tzinfo=dt.UTC)])),
    ],
)  # fmt: skip
def test_a_value_that_avros_serialiser_would_change_is_refused(kind, given, server):
    fields = [{"name": "v", "type": kind}]
    values = Avro(server.url, json.dumps({"type": "record", "name": "R", "fields": fields}))
    with pytest.raises(BadRecord, match="cannot be encoded"):
        encoded_batch(values, "orders-value", pa.StructArray.from_arrays([given], ["v"]))


@pytest.mark.parametrize("row", [{"id": 7, "nmae": "ada"}, {"id": 7, "by": {"nmae": "ada"}}], ids=["row", "nested"])
def test_a_column_that_the_avro_schema_lacks_is_refused_not_left_out(row, server):
    name = {"name": "name", "type": "string", "default": "nobody"}
    by = {"name": "by", "type": {"type": "record", "name": "By", "fields": [name]}, "default": {"name": "nobody"}}
    fields = [{"name": "id", "type": "long"}, name, by]
    values = Avro(server.url, json.dumps({"type": "record", "name": "R", "fields": fields}))
    with pytest.raises(BadRecord, match="no field 'nmae'"):
        encoded_batch(values, "orders-value", pa.array([row]))


def test_numbers_of_other_types_are_written_if_they_fit(server):
    types = {"i": "int", "l": "long", "w": "long", "d": "double", "f": "float", "n": ["null", "boolean"]}
    fields = [{"name": name, "type": each} for name, each in types.items()]
    values = Avro(server.url, json.dumps({"type": "record", "name": "R", "fields": fields}))
    given = {
        "i": pa.array([2**31 - 1]),
        "l": pa.array([7.0]),
        "w": pa.array([Decimal("7.00")]),
        "d": pa.array([3]),
        "f": pa.array([math.inf]),
        "n": pa.nulls(1),
    }
    rows = pa.StructArray.from_arrays([*given.values()], [*given])
    found, _ = decoded(values, *encoded_batch(values, "orders-value", rows).to_pylist())
    assert found == [{"i": 2**31 - 1, "l": 7, "w": 7, "d": 3.0, "f": math.inf, "n": None}]


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("float", pa.array([100_000_000, None, -(2**62)])),
        ("double", pa.array([2**60])),
        ({"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2}, pa.array([Decimal("1.50")])),
    ],
)
def test_a_number_that_the_schema_holds_as_it_is_is_written_however_large(kind, given, server):
    fields = [{"name": "v", "type": ["null", kind]}]
    values = Avro(server.url, json.dumps({"type": "record", "name": "R", "fields": fields}))
    written = encoded_batch(values, "orders-value", pa.StructArray.from_arrays([given], ["v"]))
    assert [values.decoder()(each)["v"] for each in written.to_pylist()] == given.to_pylist()


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("data", pa.array(["abcd"])),
        ("id", pa.array([Decimal("1.5")])),
        ("tags", pa.array([[b"x"]])),
        ("by", pa.array([[("a", Decimal("0.5"))]], pa.map_(pa.string(), pa.decimal128(2, 1)))),
    ],
)
def test_a_value_that_protobufs_json_form_would_change_is_refused(name, given, server):
    with pytest.raises(BadRecord, match="cannot be encoded"):
        encoded_batch(Protobuf(server.url, Order), "orders-value", pa.StructArray.from_arrays([given], [name]))


def test_a_protobuf_map_may_have_boolean_keys(server):
    values, row = Protobuf(server.url, Votes), {"by": [(False, 1), (True, 2)]}
    given = pa.array([row], pa.struct(list(arrow_schema_of(values.columns))))
    ((found,), _) = decoded(values, *encoded_batch(values, "votes-value", given).to_pylist())
    assert sorted(found["by"]) == row["by"]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), 1.5])
def test_a_protobuf_message_takes_each_double(number):
    message = filled(descriptor_pb2.UninterpretedOption(), {"double_value": number})
    assert str(message.double_value) == str(number)


def test_well_known_messages_are_written_as_they_are_read():
    file = descriptor_pb2.FileDescriptorProto(name="known.proto", package="known", syntax="proto3")
    file.dependency.extend(
        f"google/protobuf/{name}.proto" for name in ("timestamp", "duration", "wrappers", "field_mask")
    )
    known = file.message_type.add(name="Known")
    kinds = {"at": "Timestamp", "for": "Duration", "note": "StringValue", "large": "UInt64Value", "raw": "BytesValue"}
    for number, (name, kind) in enumerate({**kinds, "mask": "FieldMask", "times": "Timestamp"}.items(), 1):
        known.field.add(
            name=name, number=number, type=11, label=3 if name == "times" else 1, type_name=f".google.protobuf.{kind}"
        )
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("known.Known"))
    row = {
        "at": {"seconds": -1, "nanos": 123_456_789},
        "for": {"seconds": 90, "nanos": 0},
        "note": {"value": "x"},
        "large": {"value": 2**64 - 1},
        "raw": {"value": b"\x00"},
        "mask": {"paths": ["a.b_c"]},
        "times": [{"seconds": 7, "nanos": 0}],
    }
    assert as_dict(filled(message(), row)) == row
    empty = dict.fromkeys(row) | {"times": []}
    assert as_dict(filled(message(), empty)) == empty
    assert as_dict(filled(message(), {"note": {"value": None}}))["note"] == {"value": ""}


def test_columns_are_those_of_the_schema():
    kind = {"type": "enum", "name": "K", "symbols": ["A"]}
    inner = {"type": "record", "name": "I", "fields": [{"name": "kind", "type": kind}]}
    types = {
        "at": {"type": "long", "logicalType": "timestamp-millis"},
        "price": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        "tags": {"type": "array", "items": "string"},
        "by": {"type": "map", "values": ["null", "int"]},
        "inner": inner,
        "again": ["null", "I"],
    }
    schema = {"type": "record", "name": "R", "fields": [{"name": name, "type": each} for name, each in types.items()]}
    found = Avro("http://x:1", json.dumps(schema)).columns
    assert {field.name: field.dataType.simpleString() for field in found.fields} == {
        "at": "timestamp",
        "price": "decimal(10,2)",
        "tags": "array<string>",
        "by": "map<string,int>",
        "inner": "struct<kind:string>",
        "again": "struct<kind:string>",
    }


def test_a_type_is_found_by_its_full_name_and_by_its_short_one_in_its_namespace():
    unit = {"type": "record", "name": "Unit", "fields": [{"name": "code", "type": "string"}]}
    types = {
        "first": unit,
        "full": "org.acme.Unit",
        "short": ["null", "Unit"],
        "other": {"type": "enum", "name": "org.other.Kind", "symbols": ["A"]},
        "inside": {
            "type": "record",
            "name": "In",
            "namespace": "org.other",
            "fields": [{"name": "kind", "type": "Kind"}, {"name": "unit", "type": "org.acme.Unit"}],
        },
    }
    fields = [{"name": name, "type": each} for name, each in types.items()]
    schema = {"type": "record", "name": "R", "namespace": "org.acme", "fields": fields}
    found = Avro("http://x:1", json.dumps(schema)).columns
    assert [field.dataType.simpleString() for field in found.fields] == [
        *["struct<code:string>"] * 3,
        "string",
        "struct<kind:string,unit:struct<code:string>>",
    ]


@pytest.mark.parametrize(
    "schema",
    [
        "no json",
        '"string"',
        json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": ["int", "string"]}]}),
        json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "R"]}]}),
    ],
)
def test_a_schema_without_columns_is_refused_by_the_constructor(schema):
    with pytest.raises(ConfigInvalid):
        Avro("http://x:1", schema)


def test_a_message_inside_itself_is_refused():
    with pytest.raises(ConfigInvalid, match="inside itself"):
        Protobuf("http://x:1", struct_pb2.Struct)


def test_secrets_of_the_registry_are_not_shown():
    assert "hunter2" not in repr(Avro(Registry("http://x:1", {"basic.auth.user.info": "me:hunter2"}), READER))


@pytest.mark.parametrize("options", [{"basic.auth.user": "me"}, {"ssl.ca.location": "/nowhere/ca.pem"}])
def test_an_option_that_confluents_client_refuses_is_reported_and_no_bad_record(options, server):
    good = AvroSerializer(client(server), WRITER)({"id": 7, "secret": "x", "amount": 2.5}, CONTEXT)
    with pytest.raises(ConfigInvalid):
        decoded(Avro(Registry(server.url, options), READER, on_error="null"), good)


def test_a_registry_takes_options_with_lists_and_mappings_and_keeps_one_client():
    """As Confluent's client wants them for a login of one's own."""

    def registry(scopes):
        return Registry(
            "http://x:1",
            {
                "bearer.auth.credentials.source": "CUSTOM",
                "bearer.auth.custom.provider.function": dict,
                "bearer.auth.custom.provider.config": {"scopes": scopes},
            },
        )

    assert registry(["read"]).client() is registry(["read"]).client()
    assert registry(["read"]).client() is not registry(["write"]).client()
