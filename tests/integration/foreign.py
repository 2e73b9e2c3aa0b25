"""A foreign client: writes header names that no Python client can, by calling librdkafka itself."""

import ctypes
from pathlib import Path

import confluent_kafka
import pytest

_PRODUCER = 0  # rd_kafka_type_t
_TOPIC, _PARTITION, _VALUE, _HEADERS = 1, 3, 4, 10  # rd_kafka_vtype_t
_TEXT_MAX = 512
_FLUSH_MS = 20_000


class _Buffer(ctypes.Structure):
    _fields_ = (("data", ctypes.c_char_p), ("size", ctypes.c_size_t))


class _Union(ctypes.Union):
    _fields_ = (
        ("text", ctypes.c_char_p),
        ("number", ctypes.c_int32),
        ("buffer", _Buffer),
        ("pointer", ctypes.c_void_p),
        ("padding", ctypes.c_char * 64),
    )


class _Argument(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("value", _Union))


_pointer, _text, _int, _size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t
_SIGNATURES = {
    "rd_kafka_conf_new": (_pointer,),
    "rd_kafka_conf_set": (_int, _pointer, _text, _text, _text, _size),
    "rd_kafka_new": (_pointer, _int, _pointer, _text, _size),
    "rd_kafka_headers_new": (_pointer, _size),
    "rd_kafka_header_add": (_int, _pointer, _text, _size, _text, _size),
    "rd_kafka_produceva": (_pointer, _pointer, ctypes.POINTER(_Argument), _size),
    "rd_kafka_flush": (_int, _pointer, _int),
    "rd_kafka_destroy": (None, _pointer),
}


def write_raw(
    servers: str, topic: str, value: bytes, headers: list[tuple[bytes, bytes]], partition: int = 0
) -> None:
    """Append one record whose header names are any bytes; return once it is durable."""
    library = _library()
    text = ctypes.create_string_buffer(_TEXT_MAX)
    settings = library.rd_kafka_conf_new()
    library.rd_kafka_conf_set(settings, b"bootstrap.servers", servers.encode(), text, _TEXT_MAX)
    producer = library.rd_kafka_new(_PRODUCER, settings, text, _TEXT_MAX)
    listed = library.rd_kafka_headers_new(len(headers))
    for name, content in headers:
        library.rd_kafka_header_add(listed, name, len(name), content, len(content))
    arguments = (_Argument * 4)()
    arguments[0].kind, arguments[0].value.text = _TOPIC, topic.encode()
    arguments[1].kind, arguments[1].value.number = _PARTITION, partition
    arguments[2].kind, arguments[2].value.buffer = _VALUE, _Buffer(value, len(value))
    arguments[3].kind, arguments[3].value.pointer = _HEADERS, listed
    refused = library.rd_kafka_produceva(producer, arguments, len(arguments))
    assert not refused, "librdkafka refused the record"
    assert library.rd_kafka_flush(producer, _FLUSH_MS) == 0
    library.rd_kafka_destroy(producer)


def _library() -> ctypes.CDLL:
    beside = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    found = sorted(beside.glob("librdkafka*"))
    if not found:
        pytest.skip("this confluent_kafka does not bring a librdkafka of its own")
    library = ctypes.CDLL(str(found[0]))
    for name, (result, *parameters) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, parameters
    return library
