"""What an edit of the key file does to records that had their effect: docs/adr/0019.

A ledger that is rebuilt judges by the file of that moment. So an edit for the future changes
nothing that was, and an edit of the past takes decisions back that were delivered.
"""

from pathlib import Path
from typing import Any

import pytest

from halfbridge import MessageView, Resolution
from halfbridge.testkit.memory import MemoryStack
from tests.kit.signing import a_key, a_table, secret, write_key_file
from tests.unit.checker.admin.transactions.scene import GROUP, TOPIC, sent

DAY_MS = 86_400_000
DAEMON = a_key("daemon")
CLIENT = a_key("client")
NEXT = a_key("client", id="client-2", secret=secret("another"))


def commit(_: MessageView) -> Resolution:
    """Answer as a checker whose local transaction has committed."""
    return Resolution.COMMIT


def demanding(from_ms: int) -> dict[str, Any]:
    """Return a file that demands signatures from some time on."""
    return a_table(DAEMON, CLIENT, NEXT, demands=[{"groups": ["*"], "from_ms": from_ms}])


def ending(until_ms: int) -> dict[str, Any]:
    """Return a file in which the key of the first client ends."""
    return a_table(DAEMON, {**CLIENT, "valid_until_ms": until_ms}, NEXT)


UNSIGNED = a_table(DAEMON, CLIENT, NEXT, demands=[])
SIGNED = a_table(DAEMON, CLIENT, NEXT)


@pytest.mark.parametrize(
    ("before", "edited", "ahead_ms", "deliveries"),
    [
        (UNSIGNED, demanding, DAY_MS, 1),
        (SIGNED, ending, DAY_MS, 1),
        (UNSIGNED, demanding, 0, 2),
        (SIGNED, ending, 0, 2),
    ],
    ids=["demand ahead", "end ahead", "demand in the past", "end in the past"],
)
def test_an_edit_of_the_past_takes_a_delivered_decision_back(
    tmp_path: Path, before: dict[str, Any], edited: Any, ahead_ms: int, deliveries: int
) -> None:
    """The half message was before the edited time, and its COMMIT after: the group is asked again.

    An older transaction is undecided, so that the rebuild reads the half message at all.
    """
    path = write_key_file(tmp_path / "keys.toml", before)
    first = write_key_file(tmp_path / "first.toml", a_table(CLIENT, demands=[]))
    later = write_key_file(tmp_path / "later.toml", a_table(NEXT, demands=[]))
    signs = str(first) if before is SIGNED else ""
    with MemoryStack(partitions=1, key_file=path) as stack:
        stack.create_topic(TOPIC)
        with stack.producer(
            GROUP, checker=commit, key_file=signs, transaction_timeout_ms=600_000
        ) as producer:
            sent(producer, b"older")
            tx = sent(producer, b"two shirts")
            stack.advance(2)
            edited_ms = stack.machine.broker.now_ms - 1_000
            tx.commit()
            stack.advance(1)
        assert values(stack) == [b"two shirts"]
        stack.daemon.kill()
        write_key_file(path, edited(edited_ms + ahead_ms))
        stack.daemon.start()
        with stack.producer(GROUP, checker=commit, key_file=str(later)):
            stack.advance(700)
        assert sorted(values(stack)) == [b"older", *[b"two shirts"] * deliveries]


def values(stack: MemoryStack) -> list[bytes]:
    """Return the values that consumers see."""
    return [each.value or b"" for each in stack.read_committed(TOPIC)]
