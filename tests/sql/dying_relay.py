"""halfbridge's relay as a process that kills itself at one step of its first round.

`python -m tests.sql.dying_relay URL ...`; without --die-at it ends when no work is left.
"""

import argparse
import os
import signal

from sqlalchemy import create_engine

from halfbridge.bridge import TransactionProducer
from halfbridge.sql import Fence
from halfbridge.sql.local_messages.config import RelayConfig
from halfbridge.sql.local_messages.relay import Relay, RelayStep
from halfbridge.sql.local_messages.writer import LocalMessages
from tests.sql.relaying import run_dry


def main() -> None:
    """Relay all rows, or die at the step --die-at."""
    parser = argparse.ArgumentParser(prog="dying_relay")
    parser.add_argument("url")
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--timeout-ms", type=int, required=True, help="as the daemon has it")
    parser.add_argument("--die-at", default="", help="value of a RelayStep")
    options = parser.parse_args()

    def on_step(reached: RelayStep) -> None:
        if reached.value == options.die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    engine = create_engine(options.url)
    fence = Fence(engine, producer_group=options.group)
    with TransactionProducer(
        bootstrap_servers=options.bootstrap_servers,
        topic_prefix=options.prefix,
        producer_group=options.group,
        checker=fence.check,
        transaction_timeout_ms=options.timeout_ms,
    ) as producer:
        # A successor with the same name gets the leases at once.
        config = RelayConfig(relay_name="relay")
        run_dry(Relay(LocalMessages(engine), fence, producer, config, on_step=on_step))


if __name__ == "__main__":
    main()
