"""Values in Confluent's wire format as typed columns: Avro, JSON Schema, Protobuf, decoded and encoded by the official serialisers.

They work beside Spark, in its Python workers on Arrow batches, so that no jar is needed; record by record, for the serialisers do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, StringType, StructType

from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.spark_internals.arrow_types import arrow_schema_of
from spark_ckpt_kafka.avro_columns import avro_columns
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
    """How a topic's values are written. `on_error`: "fail" ends the run at a value that cannot be decoded, "null" makes it null
    and says why in column `value_error`. An outage of the registry ends the batch, which is tried again."""

    registry: Registry | str
    on_error: OnError

    @property
    def columns(self) -> StructType:
        """What a decoded value consists of."""
        raise NotImplementedError

    def decoder(self) -> Decode:
        """Made in a task."""
        raise NotImplementedError

    def encoder(self, subject: str) -> Encode:
        """Made in a task. `subject`: where the registry has, or gets, the schema."""
        raise NotImplementedError

    def decoded(self, rows: DataFrame, column: str = "value") -> DataFrame:
        """The rows with typed values in place of their bytes, and column `value_error` if errors do not fail."""
        from pyspark.sql import functions as F

        place = [F.col(name).cast("string") if name in rows.columns else F.lit("") for name in _PLACE]
        both = rows.withColumn(_BOTH, _decoding(self)(F.col(column), *place))
        typed = both.withColumn(column, F.col(_BOTH)["value"])
        if self.on_error == "null":
            typed = typed.withColumn(ERROR, F.col(_BOTH)["error"])
        return typed.drop(_BOTH)

    def encoded(self, value: Column, topic: str) -> Column:
        """A struct of these columns as a topic's value, for `KafkaSink`. The subject is the topic's, as producers name it."""
        return _encoding(self, f"{topic}-value")(value)


_BOTH = "ckpt_decoded"
_PLACE = ("topic", "partition", "offset")


@dataclass(frozen=True)
class Avro(Values):
    """Values written with Avro. `schema`: the reader's, as JSON: what writers left out gets its defaults, what it does not name is
    skipped. `auto_register`: whether writing registers the schema."""

    registry: Registry | str
    schema: str
    on_error: OnError = "fail"
    auto_register: bool = True

    def __post_init__(self) -> None:
        _check(self)

    @property
    def columns(self) -> StructType:
        """As the reader's schema says."""
        return avro_columns(self.schema)

    def decoder(self) -> Decode:
        """By Confluent's deserialiser."""
        from confluent_kafka.schema_registry.avro import AvroDeserializer

        return _decode(AvroDeserializer(Registry.of(self.registry).client(), self.schema))

    def encoder(self, subject: str) -> Encode:
        """By Confluent's serialiser."""
        from confluent_kafka.schema_registry.avro import AvroSerializer

        client, conf = Registry.of(self.registry).client(), {"auto.register.schemas": self.auto_register}
        return _encode(AvroSerializer(client, self.schema, conf=conf), subject)


@dataclass(frozen=True)
class JsonSchema(Values):
    """Values written as JSON with a registered JSON Schema. `schema`: what values are checked against; `read`: the columns that are
    read of them, as a `StructType` or as DDL."""

    registry: Registry | str
    schema: str
    read: StructType | str
    on_error: OnError = "fail"
    auto_register: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.read, str):  # Spark's parser is on the driver only
            object.__setattr__(self, "read", StructType.fromDDL(self.read))
        _check(self)

    @property
    def columns(self) -> StructType:
        """As `read` says."""
        return cast(StructType, self.read)

    def decoder(self) -> Decode:
        """By Confluent's deserialiser."""
        from confluent_kafka.schema_registry.json_schema import JSONDeserializer

        client = Registry.of(self.registry).client()
        return _decode(JSONDeserializer(self.schema, schema_registry_client=client))

    def encoder(self, subject: str) -> Encode:
        """By Confluent's serialiser."""
        from confluent_kafka.schema_registry.json_schema import JSONSerializer

        client, conf = Registry.of(self.registry).client(), {"auto.register.schemas": self.auto_register}
        return _encode(JSONSerializer(self.schema, client, conf=conf), subject)


@dataclass(frozen=True)
class Protobuf(Values):
    """Values written with Protobuf. `message`: the generated class, which the workers must be able to import."""

    registry: Registry | str
    message: type[Message]
    on_error: OnError = "fail"
    auto_register: bool = True

    def __post_init__(self) -> None:
        _check(self)

    @property
    def columns(self) -> StructType:
        """As the message's fields say."""
        return protobuf_columns(self.message.DESCRIPTOR)

    def decoder(self) -> Decode:
        """By Confluent's deserialiser."""
        from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer

        client = Registry.of(self.registry).client()
        decode = _decode(ProtobufDeserializer(self.message, {"use.deprecated.format": False}, client))
        return lambda data: None if (found := decode(data)) is None else as_dict(found)

    def encoder(self, subject: str) -> Encode:
        """By Confluent's serialiser."""
        from confluent_kafka.schema_registry.protobuf import ProtobufSerializer

        conf = {"auto.register.schemas": self.auto_register, "use.deprecated.format": False}
        encode = _encode(ProtobufSerializer(self.message, Registry.of(self.registry).client(), conf), subject)
        return lambda value: encode(filled(self.message(), value))


def _check(values: Avro | JsonSchema | Protobuf) -> None:
    """What would fail in the first task fails where the values are described."""
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


def decoded_batch(values: Values, data: pa.Array, places: list[pa.Array]) -> pa.Array:
    """A struct of value and error for each record. `places`: topic, partition and offset, for the error."""
    decode, found, errors = values.decoder(), [], []
    for at, each in enumerate(data.to_pylist()):
        value, error = None, None
        try:
            value = None if each is None else decode(each)
        except Exception as raised:  # noqa: BLE001 - a library's; judged in one place
            error = typed(raised, "/".join(str(place[at].as_py()) for place in places))
            if isinstance(error, OSError) or values.on_error == "fail":
                raise error from None
        found.append(value)
        errors.append(None if error is None else str(error).split("\n", 1)[0])
    kind = arrow_schema_of(StructType().add("value", values.columns)).field("value").type
    return pa.StructArray.from_arrays([pa.array(found, kind), pa.array(errors, pa.string())], ["value", "error"])


def encoded_batch(values: Values, subject: str, rows: pa.Array) -> pa.Array:
    """The bytes of each row; null stays null, which deletes a key in a compacted topic."""
    encode = values.encoder(subject)
    try:
        return pa.array([None if row is None else encode(row) for row in rows.to_pylist()], pa.binary())
    except Exception as raised:  # noqa: BLE001 - a library's; judged in one place
        raise typed(raised, subject) from None


def _decoding(values: Values) -> Callable[..., Column]:
    def decode(data: pa.Array, topic: pa.Array, partition: pa.Array, offset: pa.Array) -> pa.Array:
        return decoded_batch(values, data, [topic, partition, offset])

    return _on_arrow(decode, StructType().add("value", values.columns).add("error", StringType()))


def _encoding(values: Values, subject: str) -> Callable[..., Column]:
    def encode(rows: pa.Array) -> pa.Array:
        return encoded_batch(values, subject, rows)

    return _on_arrow(encode, BinaryType())


def _on_arrow(function: Callable[..., pa.Array], kind: DataType) -> Callable[..., Column]:
    """Spark calls it with Arrow arrays. It goes by the hints themselves: as texts, which this module has, they tell it nothing."""
    from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]

    function.__annotations__ = dict.fromkeys(function.__annotations__, pa.Array)
    made: Callable[..., Column] = arrow_udf(function, kind)
    return made
