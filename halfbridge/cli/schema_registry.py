"""Keys and values that were written with a schema registry, as JSON (Confluent's wire format).

Such bytes begin with a zero byte and the schema's id, a big-endian int of 32 bits. Avro and JSON
Schema are decoded; Protobuf is not.
"""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import click

from halfbridge.kafka.errors import RetriableError
from halfbridge.kafka.schema_registry import HEAD, SchemaRegistry

REGISTRY_VARIABLE = "HALFBRIDGE_SCHEMA_REGISTRY"

registry_option = click.option(
    "--schema-registry",
    envvar=REGISTRY_VARIABLE,
    default=None,
    metavar="URL",
    help="With --payload: decode records with the schemas of this registry. Give a URL"
    f" with a password in the variable. [{REGISTRY_VARIABLE}]",
)


class PayloadTexts:
    """Texts of keys and values, by the schemas of one registry."""

    def __init__(self, url: str) -> None:
        self._registry = registry_at(url)

    def text_of(self, data: bytes | None) -> str | None:
        """Return a key or value as JSON; None if no schema of the registry fits."""
        if data is None or len(data) < HEAD.size or data[0]:
            return None
        _, number = HEAD.unpack_from(data)
        try:
            schema = self._registry.schema(number)
        except RetriableError as error:
            raise click.ClickException(str(error)) from error
        if schema is None:
            return None
        try:
            return json.dumps(_decoded(schema, data[HEAD.size :]), ensure_ascii=False, default=str)
        except Exception:  # noqa: BLE001 (a stranger's bytes: fastavro raises whatever it meets)
            return None


def registry_at(url: str) -> SchemaRegistry:
    """Return the registry that the option names."""
    try:
        return SchemaRegistry(url)
    except ValueError as error:
        raise click.ClickException(f"--schema-registry: {error}") from error


def _decoded(schema: dict[str, Any], body: bytes) -> Any:
    kind = schema.get("schemaType", "AVRO")
    if kind == "JSON":
        return json.loads(body)
    if kind != "AVRO":
        raise ValueError(kind)
    import fastavro  # imported here: few commands need it

    parsed = fastavro.parse_schema(json.loads(schema["schema"]))
    return fastavro.schemaless_reader(BytesIO(body), parsed)
