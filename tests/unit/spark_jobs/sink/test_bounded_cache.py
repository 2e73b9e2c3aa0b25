"""What a process keeps does not grow, and is not its parent's."""

from __future__ import annotations

import os

from halfbridge.spark_jobs.sink.process import BoundedCache


def test_the_one_that_was_not_used_for_longest_is_let_go() -> None:
    """A notebook that runs a replay after the other would keep a Kafka client for each."""
    kept: BoundedCache[int] = BoundedCache(2)
    kept.put("a", 1)
    kept.put("b", 2)
    assert kept.get("a") == 1
    kept.put("c", 3)
    assert (kept.get("a"), kept.get("b"), kept.get("c")) == (1, None, 3)


def test_a_fork_does_not_use_what_its_parent_kept() -> None:
    """A Kafka client's threads stay with the parent: in the child it would wait for ever."""
    kept: BoundedCache[int] = BoundedCache(2)
    kept.put("a", 1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        kept.put("b", 2)
        os.write(writer, repr((kept.get("a"), kept.get("b"))).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"(None, 2)"
    assert (kept.get("a"), kept.get("b")) == (1, None)
    os.close(reader)
    os.close(writer)
