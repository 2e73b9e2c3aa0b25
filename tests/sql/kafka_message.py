"""Messages as confluent-kafka's consumer returns them, for tests without a broker."""

from halfbridge.serde.headers import Headers, real_headers

BORN_MS = 1_700_000_000_000


class Message:
    """A message with these headers; an error of the client's where one is given."""

    def __init__(self, headers: Headers | None, *, error: str | None = None) -> None:
        self._headers, self._error = headers, error

    def error(self) -> str | None:
        return self._error

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return 7

    def headers(self) -> Headers | None:
        return self._headers


def delivered(transaction_id: str = "a" * 32, index: int = 0) -> Message:
    """Return a message as the daemon delivers it."""
    return Message(real_headers([("trace", b"1")], transaction_id, BORN_MS, index))
