"""The Python of docs/how-to/send.md, own-checker.md and docs/incidents/dead-letters.md."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from sqlalchemy.exc import IntegrityError

from halfbridge import Message, Resolution
from halfbridge.serde import DEAD_LETTER, DeadLetter, DeadReason, OpKind
from halfbridge.serde.headers import DEAD, DEAD_MARK
from tests.integration.producing import TIMEOUT_S, Cluster

pytestmark = pytest.mark.broker

MANY = 100


def blocks(page: str) -> list[str]:
    """Return the Python of a page in docs/how-to/."""
    text = Path(__file__).parents[2].joinpath("docs", "how-to", page).read_text("utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def twice(_number: object, _id: object) -> None:
    """Refuse an order, as a unique key does."""
    raise IntegrityError("INSERT", {}, ValueError())


def test_the_clients_examples_work_as_they_stand(cluster: Cluster) -> None:
    """A block, a function and a hundred futures commit; a constraint that is violated does not."""
    stock = cluster.names.prefix + "stock"
    cluster.create((stock, 1))
    saved: list[Any] = []
    with cluster.producer(topics=[]) as producer:
        known: dict[str, Any] = {
            "producer": producer,
            "save": lambda number, _: saved.append(number),
            "Message": Message,
            "Resolution": Resolution,
        }
        for block in (*blocks("send.md"), *blocks("own-checker.md")):
            text = block.replace('"orders"', repr(cluster.orders)).replace('"stock"', repr(stock))
            exec(text, known)
        known["place"]("first")
        known["save"] = twice
        with pytest.raises(IntegrityError):
            known["place_once"]("first")
    ops = cluster.ops()  # of several partitions, in no common order
    assert Counter(op.kind for _, op in ops) == {OpKind.COMMIT: MANY + 2, OpKind.ROLLBACK: 1}
    (place,) = [record.partition() for record, op in ops if op.kind is OpKind.ROLLBACK]
    assert [op.kind for record, op in ops if record.partition() == place][-1] is OpKind.ROLLBACK
    assert saved == [7, *[0] * MANY, "first"]
    assert len(cluster.read(cluster.names.half)) == MANY + 4


def test_dead_letters_are_printed_as_operators_are_told(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """All that are there, with the reason, each time that it runs; marks are passed over."""
    dead = cluster.names.dead
    cluster.create((dead, 1))
    letter = DeadLetter(DeadReason.CHECK_TIMES, "", 15, 1, 2, cluster.names.half, 0, 7)
    producer = Producer({"bootstrap.servers": cluster.servers})
    for key in (b"first", b"second"):
        producer.produce(dead, b"v", key, headers=[(DEAD, DEAD_LETTER.encode(letter))])
        producer.produce(dead, None, key, headers=[(DEAD_MARK, b"any")])
    assert producer.flush(TIMEOUT_S) == 0

    (block,) = blocks("../incidents/dead-letters.md")
    own = block.replace("127.0.0.1:9092", cluster.servers).replace('"dead-letters"', repr(dead))
    for _ in range(2):
        exec(own.replace('"TRANS_CHECK_MAX_TIME_TOPIC"', repr(dead)), {})

        first, second = capsys.readouterr().out.splitlines()
        assert "CHECK_TIMES" in first
        assert [first.endswith("b'first' b'v'"), second.endswith("b'second' b'v'")] == [True, True]
