"""Where an answer holds its error code, so that a proxy can put another one there. Pure.

Known are the kinds of requests that a fault needs, in all versions that the clients here speak.
"""

from collections.abc import Callable
from struct import Struct, error

from tests.kit.proxy_frames import Api, NotKafkaError

_CODE = Struct(">h")
_COUNT = Struct(">i")
_LENGTH = Struct(">h")
_HEADER_BYTES = 8  # length of the frame, correlation id
_THROTTLE_BYTES = 4
_PARTITION_BYTES = 4
_VARINT_MORE = 0x80
# From this version on, lengths are varints and there are tagged fields.
_FLEXIBLE_SINCE = {
    Api.PRODUCE: 9,
    Api.LIST_OFFSETS: 6,
    Api.HEARTBEAT: 4,
    Api.ADD_OFFSETS_TO_TXN: 3,
    Api.END_TXN: 3,
    Api.TXN_OFFSET_COMMIT: 3,
    Api.DESCRIBE_CONFIGS: 4,
}
# What follows the code in an answer that refuses: with Produce, no offset.
_BEHIND = {Api.PRODUCE: Struct(">q").pack(-1)}
_PRODUCE_BY_TOPIC_ID = 13  # a version that names topics by their id


def with_error(api: int, version: int, frame: bytes, *, code: int) -> bytes:
    """Return the answer to such a request with `code` as its first error code.

    Raises:
        NotKafkaError: no such answer is known, or this is none.
    """
    try:
        known = Api(api)
        at = _PLACES[known](frame, known, version)
        _CODE.unpack_from(frame, at)
    except (ValueError, KeyError, IndexError, error) as found:
        raise NotKafkaError(f"no error code in an answer to {api}, version {version}") from found
    written = _CODE.pack(code) + _BEHIND.get(known, b"")
    return frame[:at] + written + frame[at + len(written) :]


def _after_throttle(frame: bytes, api: Api, version: int) -> int:
    """Return the place in answers that begin with a throttle time and the code."""
    return _body(frame, api, version) + _THROTTLE_BYTES


def _of_result_after_throttle(frame: bytes, api: Api, version: int) -> int:
    """Return the place of the first result's code, behind a throttle time."""
    at = _body(frame, api, version) + _THROTTLE_BYTES
    results, at = _length(frame, at, _COUNT, flexible=_is_flexible(api, version))
    if results < 1:
        raise ValueError("an answer without a result")
    return at


def _of_partition_after_throttle(frame: bytes, api: Api, version: int) -> int:
    """Return the place of the first partition's code, behind a throttle time."""
    at = _body(frame, api, version) + _THROTTLE_BYTES
    return _of_partition(frame, at, flexible=_is_flexible(api, version))


def _of_produced_partition(frame: bytes, api: Api, version: int) -> int:
    """Return the place of the first partition's code in an answer to Produce."""
    if version >= _PRODUCE_BY_TOPIC_ID:
        raise KeyError(version)
    return _of_partition(frame, _body(frame, api, version), flexible=_is_flexible(api, version))


_PLACES: dict[Api, Callable[[bytes, Api, int], int]] = {
    Api.PRODUCE: _of_produced_partition,
    Api.LIST_OFFSETS: _of_partition_after_throttle,
    Api.HEARTBEAT: _after_throttle,
    Api.ADD_OFFSETS_TO_TXN: _after_throttle,
    Api.END_TXN: _after_throttle,
    Api.TXN_OFFSET_COMMIT: _of_partition_after_throttle,
    Api.DESCRIBE_CONFIGS: _of_result_after_throttle,
}


def _of_partition(frame: bytes, at: int, *, flexible: bool) -> int:
    """Go into the first topic of an array at `at`, and into its first partition."""
    topics, at = _length(frame, at, _COUNT, flexible=flexible)
    name_bytes, at = _length(frame, at, _LENGTH, flexible=flexible)
    partitions, at = _length(frame, at + name_bytes, _COUNT, flexible=flexible)
    if topics < 1 or partitions < 1:
        raise ValueError("an answer without a partition")
    return at + _PARTITION_BYTES


def _length(frame: bytes, at: int, plain: Struct, *, flexible: bool) -> tuple[int, int]:
    """Return a length and where it ends."""
    if not flexible:
        return int(plain.unpack_from(frame, at)[0]), at + plain.size
    value, shift = 0, 0
    while frame[at] & _VARINT_MORE:
        value |= (frame[at] & ~_VARINT_MORE) << shift
        at, shift = at + 1, shift + 7
    return (value | frame[at] << shift) - 1, at + 1  # 0 stands for none, so all are one more


def _body(frame: bytes, api: Api, version: int) -> int:
    """Return where the body begins: flexible headers end with tagged fields, of which none is."""
    if not _is_flexible(api, version):
        return _HEADER_BYTES
    if frame[_HEADER_BYTES]:
        raise ValueError("an answer with tagged fields")
    return _HEADER_BYTES + 1


def _is_flexible(api: Api, version: int) -> bool:
    return version >= _FLEXIBLE_SINCE[api]
