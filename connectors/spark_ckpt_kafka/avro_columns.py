"""Translate an Avro schema into Spark columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import types as T

from spark_ckpt.errors import ConfigInvalid

_PLAIN: Mapping[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "int": T.IntegerType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "bytes": T.BinaryType(),
    "string": T.StringType(),
    "enum": T.StringType(),
    "fixed": T.BinaryType(),
}
_LOGICAL: Mapping[tuple[str, str], T.DataType] = {
    ("int", "date"): T.DateType(),
    ("long", "timestamp-millis"): T.TimestampType(),
    ("long", "timestamp-micros"): T.TimestampType(),
    ("long", "local-timestamp-millis"): T.TimestampNTZType(),
    ("long", "local-timestamp-micros"): T.TimestampNTZType(),
    ("string", "uuid"): T.StringType(),
}


def avro_columns(schema: str) -> T.StructType:
    """Return the Spark columns of an Avro record schema. `schema` is the JSON text of the schema.

    Raises `ConfigInvalid` for text that is no JSON or no record. Raises it also for types that a column cannot hold: a
    union of several types, a record inside itself.
    """
    try:
        parsed = json.loads(schema)
    except ValueError as error:
        raise ConfigInvalid(f"the Avro schema is no JSON: {error}", hint="give the schema's text") from None
    kind, _ = _type(parsed, {}, "value")
    if not isinstance(kind, T.StructType):
        raise ConfigInvalid("the Avro schema is of no record", hint='give {"type": "record", "fields": [...]}')
    return kind


def _type(schema: Any, named: dict[str, Any], path: str, space: str = "") -> tuple[T.DataType, bool]:
    """Return the Spark type and its nullability.

    `named` holds the types that the schema has defined so far, by full name. `space`: namespace of the enclosing type.
    """
    if isinstance(schema, list):
        kinds = [each for each in schema if each != "null"]
        if len(kinds) != 1:
            raise _refused(path, "a union of several types")
        return _type(kinds[0], named, path, space)[0], True
    if isinstance(schema, str):
        # A name without a dot is of the enclosing namespace first; what nothing has defined is a primitive type.
        schema = named.get(_full_name(schema, space)) or named.get(schema, {"type": schema})
    kind = schema.get("type")
    if isinstance(kind, dict | list):
        return _type(kind, named, path, space)
    if "name" in schema and kind in ("record", "enum", "fixed"):
        name = _full_name(schema["name"], schema.get("namespace", space))
        if named.get(name) is _OPEN:
            raise _refused(path, f"record {name} inside itself")
        # A later reference may be in another namespace, so that the type keeps its own.
        schema = {**schema, "name": name, "namespace": name.rpartition(".")[0]}
        # A record stays open until its fields are read: a reference to an open record is recursion.
        named[name] = _OPEN if kind == "record" else schema
    return _made(schema, kind, named, path, space), False


def _full_name(name: str, space: str) -> str:
    """Return a name of Avro with its namespace. A name with a dot has one already."""
    return f"{space}.{name}" if space and "." not in name else name


_OPEN: dict[str, str] = {"type": "a record that is not closed yet"}


def _made(schema: Any, kind: Any, named: dict[str, Any], path: str, space: str) -> T.DataType:
    if kind == "record":
        inside = schema.get("namespace", space)
        fields = [
            (field["name"], *_type(field["type"], named, f"{path}.{field['name']}", inside))
            for field in schema["fields"]
        ]
        named[schema.get("name", "")] = schema
        return T.StructType([T.StructField(name, each, null) for name, each, null in fields])
    if kind == "array":
        return T.ArrayType(*_type(schema["items"], named, f"{path}[]", space))
    if kind == "map":
        return T.MapType(T.StringType(), *_type(schema["values"], named, f"{path}{{}}", space))
    if schema.get("logicalType") == "decimal":
        return T.DecimalType(int(schema["precision"]), int(schema.get("scale", 0)))
    found = _LOGICAL.get((kind, schema.get("logicalType", ""))) or _PLAIN.get(kind)
    if found is None:
        raise _refused(path, str(kind))
    return found


def _refused(path: str, what: str) -> ConfigInvalid:
    return ConfigInvalid(f"{path} is {what}, which no column can hold", hint="leave it out of the reader's schema")
