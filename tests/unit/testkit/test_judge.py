"""The judge finds each planted fault under its right name, and nothing in a clean history."""

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from halfbridge.serde.delivery import Delivery
from halfbridge.serde.records import DeadReason, OpKind
from halfbridge.testkit.history import Anomaly, Claim, Finding, Outcome, ReadRecord, digest_of
from halfbridge.testkit.judge import judge
from halfbridge.testkit.torn import Batch, TornTransaction, batches, ended, main, read, torn
from tests.kit.examples import given
from tests.unit.testkit.histories import DEAD, History, clean_histories, value_of
from tests.unit.testkit.planted import FAULTS, deliver_the_dead, drop_whole


@given(clean_histories())
def test_clean(history: History) -> None:
    """Nothing is found in a clean history, with the op log and without it."""
    by_claims = judge(history.clients, real=history.real, dead=history.dead)

    assert history.verdict().findings == ()
    assert by_claims.findings == ()


@pytest.mark.more
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@given(history=clean_histories())
def test_planted_fault(fault: Callable[[History], Anomaly], history: History) -> None:
    """One planted fault is found, under its own name and no other."""
    expected = fault(history)
    found = set(history.found())

    if fault is deliver_the_dead:
        found.discard(Anomaly.DUPLICATED)  # it is both, and both are said
    assert found == {expected}


def test_repeats_are_allowed_at_least_once() -> None:
    """A repeat counts and is no finding; the first record must be in order."""
    history = History()
    first = history.add("COMMIT", key=b"a")
    history.add("COMMIT", key=b"a")  # the other op partition
    third = history.add("COMMIT", key=b"a")
    history.deliver(first, history.client(first).messages[0])
    assert Anomaly.DUPLICATED in history.found()
    verdict = history.verdict(delivery=Delivery.AT_LEAST_ONCE)
    assert (verdict.findings, verdict.repeats) == ((), 1)
    history.swap(history.records_of(first)[0], history.records_of(third)[0])
    found = history.verdict(delivery=Delivery.AT_LEAST_ONCE).findings
    assert [each.anomaly for each in found] == [Anomaly.REORDERED]


def test_key_order() -> None:
    """Two transactions with one key and one op partition must come in op order."""
    history = History()
    first = history.add("COMMIT", key=b"a")
    history.add("COMMIT", key=b"a")  # the other op partition
    third = history.add("COMMIT", key=b"a")
    history.swap(history.records_of(first)[0], history.records_of(third)[0])

    assert history.found() == [Anomaly.REORDERED]


def test_key_order_across_op_partitions_is_free() -> None:
    """Nothing is promised between transactions of different op partitions."""
    history = History()
    first = history.add("COMMIT", key=b"a")
    second = history.add("COMMIT", key=b"a")
    history.swap(history.records_of(first)[0], history.records_of(second)[0])

    assert history.found() == []


def test_first_decision_wins() -> None:
    """A COMMIT after a ROLLBACK delivers nothing, although it was acknowledged."""
    history = History()
    tid = history.add("ROLLBACK")
    at = history.log(tid, OpKind.COMMIT, 1)
    late = Claim(kind=OpKind.COMMIT, outcome=Outcome.OK, position=at)
    history.clients[0] = replace(history.clients[0], claims=(*history.clients[0].claims, late))

    assert history.found() == []
    history.deliver(tid, history.clients[0].messages[0])
    assert history.found() == [Anomaly.PHANTOM]


def test_strangers_op_has_no_effect() -> None:
    """A decision under another producer group decides nothing."""
    history = History()
    tid = history.add("COMMIT")
    history.ops = [
        replace(one, op=one.op._replace(producer_group="thieves")) for one in history.ops
    ]

    assert history.found() == [Anomaly.LOST, Anomaly.PHANTOM]
    assert history.verdict().findings[0] == Finding(
        Anomaly.LOST, tid, "COMMIT acknowledged at (0, 0), not in the op log"
    )


def test_in_doubt_commit_may_end_either_way() -> None:
    """A commit without an answer may be delivered or lost to a rollback; the op log says which."""
    history = History()
    tid = history.add("ROLLBACK", reported=False)
    doubt = Claim(kind=OpKind.COMMIT, outcome=Outcome.UNKNOWN)
    history.clients[0] = replace(history.clients[0], claims=(*history.clients[0].claims, doubt))
    assert history.found() == []

    history.deliver(tid, history.clients[0].messages[0])
    assert judge(history.clients, real=history.real).ok
    assert history.found() == [Anomaly.PHANTOM]


def test_early_discard_does_not_bind() -> None:
    """After a daemon's DISCARD (too early, perhaps) the next decision may rule, and only whole."""
    history = History()
    tid = history.add("DISCARD", messages=2)
    commit = Claim(kind=OpKind.COMMIT, outcome=Outcome.UNKNOWN)
    history.log(tid, OpKind.COMMIT, 2)
    history.clients[0] = replace(history.clients[0], claims=(commit,))
    assert history.found() == []

    history.dead.clear()
    for message in history.clients[0].messages:
        history.deliver(tid, message)
    assert history.found() == []

    history.real.pop()
    assert history.found() == [Anomaly.TORN]


def test_a_discard_that_claims_no_age_binds() -> None:
    """After fifteen counted answers the DISCARD rules: a delivery after it is a phantom."""
    history = History()
    tid = history.add("DISCARD", messages=1)
    history.ops = [replace(read, op=read.op._replace(age_ms=0)) for read in history.ops]
    history.log(tid, OpKind.COMMIT, 1)
    commit = Claim(kind=OpKind.COMMIT, outcome=Outcome.UNKNOWN)
    history.clients[0] = replace(history.clients[0], claims=(commit,))
    assert history.found() == []

    history.dead.clear()
    history.deliver(tid, history.clients[0].messages[0])
    assert Anomaly.PHANTOM in history.found()


def test_in_doubt_send_is_optional() -> None:
    """A message whose send was never acknowledged may be missing from a commit."""
    history = History()
    tid = history.add("COMMIT", messages=2)
    first, second = history.clients[0].messages
    doubtful = replace(second, outcome=Outcome.UNKNOWN)
    history.clients[0] = replace(history.clients[0], messages=(first, doubtful))
    assert history.found() == []

    history.real.remove(history.records_of(tid)[1])
    assert history.found() == []


def test_failed_send_must_not_arrive() -> None:
    """A message whose send failed for certain is a phantom."""
    history = History()
    history.add("COMMIT")
    failed = replace(history.clients[0].messages[0], outcome=Outcome.FAILED)
    history.clients[0] = replace(history.clients[0], messages=(failed,))

    assert history.found() == [Anomaly.PHANTOM]


def test_undeliverable_is_lost_unless_accepted() -> None:
    """A committed transaction in the dead-letter topic is lost, unless its reason is accepted."""
    history = History()
    tid = history.add("COMMIT")
    history.real.clear()
    history.dead_letter(tid, history.clients[0].messages[0], DeadReason.UNDELIVERABLE)

    assert history.found() == [Anomaly.LOST]
    assert history.verdict(accepted_dead=frozenset((DeadReason.UNDELIVERABLE,))).ok


def test_extra_messages_may_be_dead_lettered() -> None:
    """A commit of n messages may leave a later, unacknowledged one in the dead-letter topic."""
    history = History()
    tid = history.add("COMMIT")
    extra = replace(
        history.clients[0].messages[0],
        index=1,
        digest=digest_of(value_of(tid, 1)),
        outcome=Outcome.UNKNOWN,
    )
    history.clients[0] = replace(history.clients[0], messages=(*history.clients[0].messages, extra))
    history.dead_letter(tid, extra, DeadReason.LATE)

    assert history.found() == []


def test_readers_that_disagree() -> None:
    """One offset with two contents is corruption; the same content twice is one record."""
    history = History()
    history.add("COMMIT")
    history.real.append(history.real[0])
    assert history.found() == []

    history.real.append(replace(history.real[0], value=b"?"))
    assert history.found() == [Anomaly.CORRUPTED]


def test_foreign_dead_letters_are_no_anomaly() -> None:
    """Junk in the dead-letter topic belongs to no transaction."""
    history = History()
    history.dead.append(
        ReadRecord(topic=DEAD, partition=0, offset=0, key=None, value=b"junk", headers=())
    )

    assert history.found() == []


def test_verdict_counts_and_describes() -> None:
    """A verdict counts findings and what came out, and gives examples of each anomaly."""
    history = History()
    multi = history.add("COMMIT", messages=3)
    discarded = history.add("DISCARD", messages=2)
    clean = history.verdict()
    drop_whole(history)
    verdict = history.verdict()

    assert (clean.ok, clean.describe()) == (True, "nothing is wrong")
    assert (clean.delivered, clean.dead_lettered) == ({multi: 3}, {discarded: 2})
    assert verdict.counts[Anomaly.TORN] == 1
    assert verdict.describe().startswith(f"torn: 1\n  torn: {multi}: delivered without")


# --- what a coordinator tore is found in brokers' logs, and nothing else is taken for it ---

PRODUCER, EPOCH = 7, 3
COMMIT, ABORT = True, False


def data(first: int, at_ms: int, *, last: int | None = None, epoch: int = EPOCH) -> Batch:
    """Return records of the producer."""
    return Batch(first, first if last is None else last, at_ms, PRODUCER, epoch, None)


def marker(first: int, at_ms: int, *, is_commit: bool, epoch: int = EPOCH) -> Batch:
    """Return a marker that the coordinator wrote."""
    return Batch(first, first, at_ms, PRODUCER, epoch, is_commit)


def found(**partitions: list[Batch]) -> list[TornTransaction]:
    """Return what is torn."""
    return torn({name: ended(content) for name, content in partitions.items()})


def test_committed_here_and_aborted_there() -> None:
    """As on 2026-11-22: COMMIT of the old coordinator, ABORT of the next, for the same records."""
    once = [data(10, 100, last=12), marker(13, 900, is_commit=COMMIT)]
    again = [*once, marker(14, 1500, is_commit=ABORT, epoch=EPOCH + 1)]
    elsewhere = [data(5, 101, last=6), marker(7, 1500, is_commit=ABORT, epoch=EPOCH + 1)]
    assert found(a=again, b=elsewhere) == [
        TornTransaction(PRODUCER, EPOCH, committed={"a": (10, 12)}, aborted={"b": (5, 6)})
    ]


def test_a_commit_that_is_written_twice_tears_nothing() -> None:
    """A coordinator that was started again repeats its markers."""
    twice = [data(10, 100), *(marker(11 + n, 900 + n, is_commit=COMMIT) for n in range(2))]
    elsewhere = [data(5, 950), marker(6, 1500, is_commit=ABORT)]
    assert found(a=twice, b=elsewhere) == []


def test_the_next_one_may_be_aborted_without_records() -> None:
    """A partition that was added to a kafka_txn and got nothing of it has its ABORT too."""
    before = [data(10, 100), marker(11, 200, is_commit=COMMIT)]
    added = [*before, marker(12, 1500, is_commit=ABORT, epoch=EPOCH + 1)]
    elsewhere = [data(5, 300), marker(6, 1500, is_commit=ABORT, epoch=EPOCH + 1)]
    assert found(a=added, b=elsewhere) == []


def test_an_abort_everywhere_tears_nothing() -> None:
    """A new producer of the same id aborts what the last one left."""
    left = [data(10, 100), marker(11, 900, is_commit=ABORT, epoch=EPOCH + 1)]
    assert found(a=left, b=left) == []


def test_logs_are_read_from_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Batches as brokers write them, of topics that are being deleted too."""
    again = [(10, 100, None), (11, 900, COMMIT), (12, 1500, ABORT)]
    for name, content in (
        ("a.b-0", again),
        ("c-1.0123abcd-delete", [(5, 101, None), (6, 1500, ABORT)]),
    ):
        directory = tmp_path / name
        directory.mkdir()
        segment = b"".join(_batch(*each) for each in content)
        (directory / "00000000000000000000.log").write_bytes(segment + bytes(100))
    (tmp_path / "meta.properties").write_text("")
    assert [each.is_commit for each in batches(_batch(1, 2, None) + _batch(3, 4, ABORT))] == [
        None,
        False,
    ]
    assert set(read(tmp_path)) == {"a.b-0", "c-1"}
    assert main([str(tmp_path)]) == 1
    assert "committed {'a.b-0': (10, 10)}, aborted {'c-1': (5, 5)}" in capsys.readouterr().out


def _batch(first: int, at_ms: int, is_commit: bool | None) -> bytes:
    key = b"" if is_commit is None else struct.pack(">hh", 0, int(is_commit))
    # Attributes, time, offset, key's length, key, no value, no headers; lengths in zigzag.
    record = bytes((0, 0, 0, 2 * len(key))) + key + b"\1\0"
    attributes = 0x10 if is_commit is None else 0x30
    body = struct.pack(">ibIhiqqqhii", 0, 2, 0, attributes, 0, at_ms, at_ms, PRODUCER, EPOCH, -1, 1)
    body += bytes((2 * len(record),)) + record
    return struct.pack(">qi", first, len(body)) + body
