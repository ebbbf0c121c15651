"""Translates a Protobuf message type into Spark columns, and messages into plain values and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

from spark_ckpt.errors import ConfigInvalid

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message

_INT32, _INT64, _UINT32, _UINT64, _DOUBLE, _FLOAT, _BOOL, _ENUM, _STRING, _MESSAGE = range(1, 11)
"""`FieldDescriptor.CPPTYPE_...` numbers; they belong to the format, not to a version."""
_BYTES = 12
"""`FieldDescriptor.TYPE_BYTES`."""
_KINDS: Mapping[int, T.DataType] = {
    _INT32: T.IntegerType(),
    _INT64: T.LongType(),
    _UINT32: T.LongType(),
    # Spark has no unsigned type: the greatest number of 64 bits has 20 digits.
    _UINT64: T.DecimalType(20, 0),
    _DOUBLE: T.DoubleType(),
    _FLOAT: T.FloatType(),
    _BOOL: T.BooleanType(),
    _ENUM: T.StringType(),
    _STRING: T.StringType(),
}


def protobuf_columns(message: Descriptor, above: tuple[str, ...] = ()) -> T.StructType:
    """Return one Spark column for each field. Raises `ConfigInvalid` for a message inside itself.

    `above` holds the full names of the enclosing messages.
    """
    if message.full_name in above:
        raise ConfigInvalid(f"message {message.full_name} is inside itself, which no column can hold")
    inside = (*above, message.full_name)
    return T.StructType([T.StructField(field.name, _type(field, inside), True) for field in message.fields])


def _type(field: FieldDescriptor, above: tuple[str, ...]) -> T.DataType:
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return T.MapType(_one(key, above), _one(value, above))
    return T.ArrayType(_one(field, above)) if field.is_repeated else _one(field, above)


def _one(field: FieldDescriptor, above: tuple[str, ...]) -> T.DataType:
    if field.cpp_type == _MESSAGE:
        return protobuf_columns(field.message_type, above)
    return T.BinaryType() if field.type == _BYTES else _KINDS[field.cpp_type]


def _is_map(field: FieldDescriptor) -> bool:
    return bool(field.message_type and field.message_type.GetOptions().map_entry)


def as_dict(message: Message) -> dict[str, Any]:
    """Return the message's fields by name. An unset field with presence is None; other unset fields have their
    default.
    """
    return {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}


def _value(message: Message, field: FieldDescriptor) -> Any:
    if field.has_presence and not message.HasField(field.name):
        return None
    value = getattr(message, field.name)
    if _is_map(field):
        inner = field.message_type.fields_by_name["value"]
        return [(key, _plain(each, inner)) for key, each in value.items()]
    return [_plain(each, field) for each in value] if field.is_repeated else _plain(value, field)


def _plain(value: Any, field: FieldDescriptor) -> Any:
    if field.cpp_type == _MESSAGE:
        return as_dict(value)
    if field.cpp_type == _ENUM:
        # A newer producer's enum may have more values. proto3 keeps their numbers, and so does the column.
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else str(value)
    return value


def filled(message: Message, value: Mapping[str, Any]) -> Message:
    """Return the message, filled with the values of a row. A null leaves its field unset."""
    from google.protobuf.json_format import ParseDict

    filled_in: Message = ParseDict(_written(value, message.DESCRIPTOR), message)
    return filled_in


def _written(value: Any, kind: Descriptor | None) -> Any:
    """Return a value in Protobuf's JSON form. `kind`: its message, or that of the values of a list or map; None for others."""
    if isinstance(value, Mapping):
        # An empty list may be an empty map, which ParseDict takes as a mapping only; without elements both are unset.
        given = {name: each for name, each in value.items() if each is not None and each != []}
        if kind is not None and kind.file.package == "google.protobuf" and kind.name in _OF_GOOGLE:
            return _well_known(given, kind)
        fields = kind.fields_by_name if kind is not None else {}
        return {name: _written(each, _message_of(fields.get(name))) for name, each in given.items()}
    # ParseDict reads Protobuf's JSON form, in which bytes are base64 and the keys of a map are texts.
    if isinstance(value, bytes):
        from base64 import b64encode

        return b64encode(value).decode()
    # Its numbers are JSON's, which has neither NaN nor infinity.
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list):
        pairs = bool(value) and isinstance(value[0], tuple)
        return (
            {_key(key): _written(each, kind) for key, each in value}
            if pairs
            else [_written(each, kind) for each in value]
        )
    return value


_WRAPPERS = tuple(
    f"{each}Value" for each in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)
_OF_GOOGLE = frozenset(("Timestamp", "Duration", "FieldMask", *_WRAPPERS))
"""Messages that are no object in Protobuf's JSON form."""


def _well_known(given: Mapping[str, Any], kind: Descriptor) -> Any:
    if kind.name in _WRAPPERS:
        return _written(given.get("value", kind.fields_by_name["value"].default_value), None)
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(kind)(**given).ToJsonString()


def _message_of(field: FieldDescriptor | None) -> Descriptor | None:
    if field is None or field.message_type is None:
        return None
    return field.message_type.fields_by_name["value"].message_type if _is_map(field) else field.message_type


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)
