"""Takes the place of a client that was closed."""

from __future__ import annotations

from typing import NoReturn


class Closed:
    """Refuses every call but `close`; empty.

    A port that is closed drops its reference to the client, and the client then frees its threads,
    its connections and its key for thread-local storage. Callbacks of the client often lead back
    to the port. So the client would otherwise live until the collector of cycles runs, and a
    process that makes and closes many clients runs out of file descriptors or of keys (1,024 on
    Linux).
    """

    def close(self) -> None:
        """Do nothing: the client is closed already."""

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse.

        Raises:
            RuntimeError: always; whoever closed the client must not use the client again.
        """
        refuse()

    def __len__(self) -> int:
        """Return 0: nothing is outstanding."""
        return 0


def refuse(*_arguments: object, **_keywords: object) -> NoReturn:
    """Refuse a call, as `Closed` does.

    Raises:
        RuntimeError: always.
    """
    raise RuntimeError("the Kafka client is closed")
