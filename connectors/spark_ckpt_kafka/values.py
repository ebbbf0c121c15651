"""Typed columns for values in Confluent's wire format: Avro, JSON Schema, Protobuf, with the official serialisers.

The conversion runs in Spark's Python workers on Arrow batches, so that no jar is needed. It works record by record,
because the serialisers do.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, StringType, StructType

from spark_ckpt.errors import BadRecord, ConfigInvalid
from spark_ckpt.spark_internals.arrow_types import arrow_schema_of
from spark_ckpt_kafka.avro_columns import avro_columns
from spark_ckpt_kafka.column_values import check_written, fitted
from spark_ckpt_kafka.protobuf_columns import as_dict, filled, protobuf_columns
from spark_ckpt_kafka.registry import Registry, typed

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from pyspark.sql import Column, DataFrame

OnError = Literal["fail", "null"]
ERROR = "value_error"

Decode = Callable[[bytes], Mapping[str, Any] | None]
Encode = Callable[[Mapping[str, Any]], bytes]


class Values:
    """Format of a topic's values.

    `on_error`: "fail" ends the job at a value that cannot be decoded. "null" makes the value null and puts the reason
    into column `value_error`. An outage of the registry fails the batch, which is retried.
    """

    registry: Registry | str
    on_error: OnError

    @property
    def columns(self) -> StructType:
        """Columns of a decoded value."""
        raise NotImplementedError

    def decoder(self) -> Decode:
        """Return the decoder; called in a task."""
        raise NotImplementedError

    def encoder(self, subject: str) -> Encode:
        """Return the encoder; called in a task. `subject` names the schema in the registry."""
        raise NotImplementedError

    def decoded(self, rows: DataFrame, column: str = "value") -> DataFrame:
        """Return the rows with typed values instead of bytes. With `on_error="null"` they have a column
        `value_error`.
        """
        from pyspark.sql import functions as F

        place = [F.col(name).cast("string") if name in rows.columns else F.lit("") for name in _PLACE]
        # Value and error in one struct, so that each value is decoded once.
        both = rows.withColumn(_BOTH, _decoding(self)(F.col(column), *place))
        typed = both.withColumn(column, F.col(_BOTH)["value"])
        if self.on_error == "null":
            typed = typed.withColumn(ERROR, F.col(_BOTH)["error"])
        return typed.drop(_BOTH)

    def encoded(self, value: Column, topic: str) -> Column:
        """Return a struct of these columns encoded as a topic's value, for `KafkaSink`. The subject is TOPIC-value,
        as usual.
        """
        return _encoding(self, f"{topic}-value")(value)


def _time_text(value: object) -> str:
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    raise TypeError(f"JSON has no {type(value).__name__}")


_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_time_text)
"""Confluent's own choice depends on the installed packages: it writes NaN as a word that is no JSON, or as null, and times as
texts like these, or not at all.
"""

_BOTH = "ckpt_decoded"
_PLACE = ("topic", "partition", "offset")


@dataclass(frozen=True)
class Avro(Values):
    """Values in Avro.

    `schema`: the reader's schema as JSON. Missing fields get its defaults, fields that it does not name are skipped.
    `auto_register`: writing registers the schema.
    """

    registry: Registry | str
    schema: str
    on_error: OnError = "fail"
    auto_register: bool = True

    def __post_init__(self) -> None:
        _check(self)

    @property
    def columns(self) -> StructType:
        """Columns of the reader's schema."""
        return avro_columns(self.schema)

    def decoder(self) -> Decode:
        """Return Confluent's deserialiser."""
        from confluent_kafka.schema_registry.avro import AvroDeserializer

        return _decode(AvroDeserializer(Registry.of(self.registry).client(), self.schema))

    def encoder(self, subject: str) -> Encode:
        """Return Confluent's serialiser."""
        from confluent_kafka.schema_registry.avro import AvroSerializer

        client, conf = Registry.of(self.registry).client(), {"auto.register.schemas": self.auto_register}
        return _encode(AvroSerializer(client, self.schema, conf=conf), subject)


@dataclass(frozen=True)
class JsonSchema(Values):
    """Values in JSON with a registered JSON Schema.

    `schema`: values are checked against it. `read`: the columns to read, as a `StructType` or as DDL.
    """

    registry: Registry | str
    schema: str
    read: StructType | str
    on_error: OnError = "fail"
    auto_register: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.read, str):  # Spark's DDL parser runs on the driver only
            object.__setattr__(self, "read", StructType.fromDDL(self.read))
        _check(self)

    @property
    def columns(self) -> StructType:
        """Columns of `read`."""
        return cast(StructType, self.read)

    def decoder(self) -> Decode:
        """Return Confluent's deserialiser."""
        from confluent_kafka.schema_registry.json_schema import JSONDeserializer

        client = Registry.of(self.registry).client()
        return _decode(JSONDeserializer(self.schema, schema_registry_client=client))

    def encoder(self, subject: str) -> Encode:
        """Return Confluent's serialiser."""
        from confluent_kafka.schema_registry.json_schema import JSONSerializer

        client, conf = Registry.of(self.registry).client(), {"auto.register.schemas": self.auto_register}
        return _encode(JSONSerializer(self.schema, client, conf=conf, json_encode=_JSON.encode), subject)


@dataclass(frozen=True)
class Protobuf(Values):
    """Values in Protobuf. `message`: the generated class, which the Python workers must be able to import."""

    registry: Registry | str
    message: type[Message]
    on_error: OnError = "fail"
    auto_register: bool = True

    def __post_init__(self) -> None:
        _check(self)

    @property
    def columns(self) -> StructType:
        """Columns of the message's fields."""
        return protobuf_columns(self.message.DESCRIPTOR)

    def decoder(self) -> Decode:
        """Return Confluent's deserialiser."""
        from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer

        client = Registry.of(self.registry).client()
        decode = _decode(ProtobufDeserializer(self.message, {"use.deprecated.format": False}, client))
        return lambda data: None if (found := decode(data)) is None else as_dict(found)

    def encoder(self, subject: str) -> Encode:
        """Return Confluent's serialiser."""
        from confluent_kafka.schema_registry.protobuf import ProtobufSerializer

        conf = {"auto.register.schemas": self.auto_register, "use.deprecated.format": False}
        encode = _encode(ProtobufSerializer(self.message, Registry.of(self.registry).client(), conf), subject)
        return lambda value: encode(filled(self.message(), value))


def _check(values: Avro | JsonSchema | Protobuf) -> None:
    """Refuse values on the driver that would fail in the first task."""
    Registry.of(values.registry)
    if values.on_error not in ("fail", "null"):
        raise ConfigInvalid(f"on_error is 'fail' or 'null', not {values.on_error!r}")
    if not values.columns.fields:
        raise ConfigInvalid("the values have no columns", hint="give the schema of a record, with its fields")


def _decode(deserialise: Callable[..., Any]) -> Callable[[bytes], Any]:
    from confluent_kafka.serialization import MessageField, SerializationContext

    context = SerializationContext("", MessageField.VALUE)
    return lambda data: deserialise(data, context)


def _encode(serialise: Callable[..., Any], subject: str) -> Callable[[Any], bytes]:
    from confluent_kafka.serialization import MessageField, SerializationContext

    context = SerializationContext(subject.removesuffix("-value"), MessageField.VALUE)
    return lambda value: serialise(value, context)


# -- in tasks --------------------------------------------------------------------------------------------------------------


_UNHELD = (pa.ArrowException, OverflowError, UnicodeError)
"""Errors for a value that its column cannot hold. The last one: JSON's text may have half of a surrogate pair."""


def decoded_batch(values: Values, data: pa.Array, places: list[pa.Array]) -> pa.Array:
    """Return a struct of value and error for each record. `places`: topic, partition and offset, for the error."""
    decode, found, errors = values.decoder(), [], []
    kind = arrow_schema_of(StructType().add("value", values.columns)).field("value").type

    def failed(at: int, raised: Exception) -> str:
        error = typed(raised, "/".join(str(place[at].as_py()) for place in places))
        # An outage or a refused login is no property of the record: with "null" it would turn every record of the
        # batch into a rejected one.
        if not isinstance(error, BadRecord) or values.on_error == "fail":
            raise error from None
        return str(error).split("\n", 1)[0]

    for at, each in enumerate(data.to_pylist()):
        value, error = None, None
        try:
            value = None if each is None else fitted(decode(each), kind)
        except Exception as raised:  # noqa: BLE001 - a library's; judged in one place
            error = failed(at, raised)
        found.append(value)
        errors.append(error)
    try:
        column = pa.array(found, kind)
    except _UNHELD:
        # The error of a whole column names no record, and one record at a time takes ten times as long.
        for at, value in enumerate(found):
            try:
                pa.array([value], kind)
            except _UNHELD as raised:
                found[at], errors[at] = None, failed(at, raised)
        column = pa.array(found, kind)
    return pa.StructArray.from_arrays([column, pa.array(errors, pa.string())], ["value", "error"])


def encoded_batch(values: Values, subject: str, rows: pa.Array) -> pa.Array:
    """Return the encoded bytes of each row. Null stays null, which deletes a key in a compacted topic."""
    encode = values.encoder(subject)
    # Pairs, Arrow's usual form of a map, are an array in JSON, and no map for Avro's serialiser. Only Protobuf's takes
    # them: it can tell a null in a map from one in a message.
    maps = None if isinstance(values, Protobuf) else "strict"
    try:
        # JSON's serialiser raises for what JSON lacks.
        if not isinstance(values, JsonSchema):
            check_written(rows, values.columns, lacks=isinstance(values, Avro))
        given = rows.to_pylist(maps_as_pydicts=maps)
        return pa.array([None if row is None else encode(row) for row in given], pa.binary())
    except Exception as raised:  # noqa: BLE001 - a library's; judged in one place
        raise typed(raised, subject, writes=True) from None


def _decoding(values: Values) -> Callable[..., Column]:
    def decode(data: pa.Array, topic: pa.Array, partition: pa.Array, offset: pa.Array) -> pa.Array:
        return decoded_batch(values, data, [topic, partition, offset])

    return _on_arrow(decode, StructType().add("value", values.columns).add("error", StringType()))


def _encoding(values: Values, subject: str) -> Callable[..., Column]:
    def encode(rows: pa.Array) -> pa.Array:
        return encoded_batch(values, subject, rows)

    return _on_arrow(encode, BinaryType())


def _on_arrow(function: Callable[..., pa.Array], kind: DataType) -> Callable[..., Column]:
    from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]

    # `arrow_udf` reads the annotations as objects; this module has them as text, because of the `__future__` import.
    function.__annotations__ = dict.fromkeys(function.__annotations__, pa.Array)
    made: Callable[..., Column] = arrow_udf(function, kind)
    return made
