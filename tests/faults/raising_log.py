"""`halfbridge` with a log handler that raises, as one may that sends lines over a network.

It prints a line on standard error each time, because nothing else reports it.
"""

import logging
import sys

from halfbridge.cli import main

RAISED = "a log handler raises"


class RaisingHandler(logging.Handler):
    """Raises when an error of a Kafka client is logged, which happens in the client's callbacks."""

    def emit(self, record: logging.LogRecord) -> None:
        """Raise, where the base class would have a handler do nothing of the kind."""
        if record.getMessage().startswith("Kafka:"):
            sys.stderr.write(f"{RAISED}\n")
            raise ConnectionError(RAISED)


if __name__ == "__main__":
    logging.getLogger("halfbridge").addHandler(RaisingHandler())
    main()
