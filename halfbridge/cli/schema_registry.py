"""Keys and values that were written with a schema registry, as JSON (Confluent's wire format).

Such bytes begin with a zero byte and the schema's id, a big-endian int of 32 bits.
"""

from __future__ import annotations

import json
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from halfbridge.kafka.errors import RetriableError
from halfbridge.kafka.schema_registry import HEAD, NO_PROTOBUF, SCHEMAS_MAX, SchemaRegistry
from halfbridge.logs import bytes_text, one_line

if TYPE_CHECKING:
    from collections.abc import Callable

REGISTRY_VARIABLE = "HALFBRIDGE_SCHEMA_REGISTRY"

registry_option = click.option(
    "--schema-registry",
    envvar=REGISTRY_VARIABLE,
    default=None,
    metavar="URL",
    help="With --payload: decode records with the schemas of this registry. Give a URL"
    f" with a password in the variable. [{REGISTRY_VARIABLE}]",
)


class Decoded(NamedTuple):
    """What the schemas of a registry make of a key or value; both None: it has no schema there."""

    text: str | None = None  # JSON
    why_not: str | None = None  # the schema does not decode it


class PayloadTexts:
    """Texts of keys and values, by the schemas of one registry."""

    def __init__(self, url: str) -> None:
        self._registry = registry_at(url)
        self._decoder = lru_cache(SCHEMAS_MAX)(self._made_decoder)

    def decoded(self, data: bytes | None) -> Decoded:
        """Return a key or value as JSON, or why its schema does not decode it.

        Raises click's error where the registry does not answer; the user repeats the command.
        """
        if data is None or len(data) < HEAD.size or data[0]:
            return Decoded()
        _, number = HEAD.unpack_from(data)
        try:
            decoder = self._decoder(number)
        except RetriableError as error:
            raise click.ClickException(str(error)) from error
        if decoder is None:
            return Decoded()
        try:
            value = decoder(data[HEAD.size :])
            return Decoded(json.dumps(value, ensure_ascii=False, default=str))
        except Exception as error:  # noqa: BLE001 (a stranger's bytes: fastavro raises whatever it meets)
            return Decoded(why_not=f"schema {number}: {error}")

    def _made_decoder(self, number: int) -> Callable[[bytes], Any] | None:
        schema = self._registry.schema(number)
        if schema is None:
            return None
        try:
            return _decoder(self._registry, number, schema)
        except RetriableError:
            raise
        except Exception as error:  # noqa: BLE001 (a stranger's schema)
            return _refusing(error)


def registry_at(url: str) -> SchemaRegistry:
    """Return the registry that the option names."""
    try:
        return SchemaRegistry(url)
    except ValueError as error:
        raise click.ClickException(f"--schema-registry: {error}") from error


def echo_payload(head: str, data: bytes | None, registry: PayloadTexts | None) -> None:
    """Print a key or value after `head`, decoded if the registry can; else the bytes, and why."""
    text, why_not = Decoded() if registry is None else registry.decoded(data)
    click.echo(f"{head}{bytes_text(data) if text is None else one_line(text)}")
    if why_not is not None:
        click.echo(f"{' ' * len(head)}not decoded: {one_line(why_not)}")


def _decoder(
    registry: SchemaRegistry, number: int, schema: dict[str, Any]
) -> Callable[[bytes], Any]:
    match schema.get("schemaType", "AVRO"):
        case "JSON":
            return json.loads
        case "PROTOBUF":
            return _protobuf_decoder(registry, number)
        case "AVRO":
            import fastavro  # imported here: few commands need it

            parsed = fastavro.parse_schema(json.loads(schema["schema"]))
            return lambda body: fastavro.schemaless_reader(BytesIO(body), parsed)
        case kind:
            raise ValueError(f"{kind} is not decoded")


def _protobuf_decoder(registry: SchemaRegistry, number: int) -> Callable[[bytes], Any]:
    try:
        from google.protobuf.json_format import MessageToDict
        from google.protobuf.message_factory import GetMessageClass

        from halfbridge.kafka.protobuf_schemas import chosen_message, pool_of, protobuf_schema
    except ImportError as error:
        raise ValueError(NO_PROTOBUF) from error
    files = protobuf_schema(registry, number)
    main, pool = files.file[-1], pool_of(files)

    def decoded(body: bytes) -> Any:
        data = BytesIO(body)
        kind = GetMessageClass(pool.FindMessageTypeByName(chosen_message(main, data)))
        return MessageToDict(
            kind.FromString(data.read()),
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
            descriptor_pool=pool,
        )

    return decoded


def _refusing(error: Exception) -> Callable[[bytes], Any]:
    def refuse(_: bytes) -> Any:
        raise error

    return refuse
