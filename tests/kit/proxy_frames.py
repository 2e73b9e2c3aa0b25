"""Kafka's frames: four bytes of length, then a header with the correlation id. Pure."""

from enum import IntEnum
from struct import Struct

_LENGTH = Struct(">i")
_REQUEST = Struct(">ihhi")  # length, api key, api version, correlation id
_ANSWER = Struct(">ii")  # length, correlation id
# Header, throttle time, error; since version 3 with tags, of which there are none.
_REFUSAL = Struct(">iiih")
_TAGGED_REFUSAL = Struct(">iibihb")
_TAGS_SINCE = 3
FRAME_BYTES_MAX = 256 * 1024 * 1024  # beyond what brokers take; what claims more is not Kafka


class Api(IntEnum):
    """Keys of the requests that faults are aimed at."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32


class NotKafkaError(ValueError):
    """The bytes are no Kafka frames; the connection cannot go on."""


class Frames:
    """Cuts one direction of a connection into whole frames, each with its length in front."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that `data` completes.

        Raises:
            NotKafkaError: a length that no frame has.
        """
        rest = self._rest
        rest += data
        frames, at = [], 0
        while len(rest) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(rest, at)
            if not _LENGTH.size <= length <= FRAME_BYTES_MAX:
                raise NotKafkaError(f"a frame of {length} bytes")
            end = at + _LENGTH.size + length
            if end > len(rest):
                break
            frames.append(bytes(rest[at:end]))
            at = end
        del rest[:at]
        return frames


def request_header(frame: bytes) -> tuple[int, int, int]:
    """Return (api key, api version, correlation id) of a request.

    Raises:
        NotKafkaError: it is too short for a request.
    """
    if len(frame) < _REQUEST.size:
        raise NotKafkaError(f"a request of {len(frame)} bytes")
    _, api, version, correlation_id = _REQUEST.unpack_from(frame)
    return api, version, correlation_id


def answer_header(frame: bytes) -> int:
    """Return the correlation id of an answer."""
    _, correlation_id = _ANSWER.unpack_from(frame)
    return int(correlation_id)


def refusal(frame: bytes, error: int) -> bytes:
    """Return the answer with which a broker refuses an AddOffsetsToTxn.

    Raises:
        ValueError: another kind of request; answers differ from kind to kind.
    """
    _, api, version, correlation_id = _REQUEST.unpack_from(frame)
    if api != Api.ADD_OFFSETS_TO_TXN:
        raise ValueError(f"what an answer to request {api} looks like is not known here")
    if version < _TAGS_SINCE:
        return _REFUSAL.pack(_REFUSAL.size - _LENGTH.size, correlation_id, 0, error)
    length = _TAGGED_REFUSAL.size - _LENGTH.size
    return _TAGGED_REFUSAL.pack(length, correlation_id, 0, 0, error, 0)
