"""Transaction ids: time-ordered, unique, unguessable."""

import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from time import time_ns

import pytest

from halfbridge.serde.identity import TransactionIds


def test_ids_are_uuid_version_7_of_now() -> None:
    """Any UUID library reads the version, the variant and the time."""
    before = time_ns() // 1_000_000
    text = TransactionIds().next()
    parsed = uuid.UUID(text)
    assert len(text) == 32
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert before <= parsed.int >> 80 <= time_ns() // 1_000_000


def test_ids_ascend_and_differ() -> None:
    """More ids than the counter holds in a millisecond stay in order."""
    ids = TransactionIds()
    made = [ids.next() for _ in range(20_000)]
    assert made == sorted(set(made))


def test_threads_never_share_an_id() -> None:
    """Eight threads, one generator, no duplicate."""
    ids = TransactionIds()
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: [ids.next() for _ in range(2_000)], range(8)))
    assert len({each for batch in made for each in batch}) == 16_000


@pytest.mark.process
def test_a_forked_child_makes_other_ids() -> None:
    """Child and parent share no randomness, though they fork with the same pool."""
    ids = TransactionIds()
    ids.next()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, ids.next().encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reader, 32).decode()
    os.close(reader)
    os.close(writer)
    assert theirs[16:] != ids.next()[16:]
