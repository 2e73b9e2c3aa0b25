"""Signed records from client to consumer; an attacker may write half and op topic."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halfbridge import MessageView, Resolution
from halfbridge.checker.admin.appending import appending
from halfbridge.checker.admin.decisions import Decided, Decider, DecisionRequest, find_candidate
from halfbridge.checker.admin.init import InitRequest, find_offsets
from halfbridge.checker.admin.operator_log import OperatorLog
from halfbridge.checker.admin.transactions.look_up import Wanted
from halfbridge.checker.errors import AdminSetupError
from halfbridge.checker.signatures import check_signer, daemon_signatures, signed_op
from halfbridge.kafka.errors import ConfigError
from halfbridge.kafka.signatures import NO_SIGNATURES
from halfbridge.serde.headers import SIGN
from halfbridge.serde.records import ActionOutcome, DeadReason, OpKind, OpSource
from halfbridge.testkit.history import ReadRecord
from halfbridge.testkit.memory import MemoryStack
from tests.kit.signing import a_key, a_table, secret, write_key_file
from tests.unit.checker.admin.transactions.scene import GROUP, TOPIC, Operator, sent, unknown


@pytest.fixture(name="key_file")
def make_key_file(tmp_path: Path) -> Path:
    """Return a file with a key for each role that demands all signatures."""
    return write_key_file(tmp_path / "keys.toml", a_table())


@pytest.fixture(name="stack")
def start_stack(key_file: Path) -> Iterator[MemoryStack]:
    """An installation of one pair that demands signatures."""
    with MemoryStack(partitions=1, key_file=key_file) as stack:
        stack.create_topic(TOPIC)
        yield stack


def commit(_: MessageView) -> Resolution:
    """Return COMMIT."""
    return Resolution.COMMIT


def values(stack: MemoryStack) -> list[bytes | None]:
    """Return the values that consumers read."""
    return [each.value for each in stack.read_committed(TOPIC)]


def in_topic(stack: MemoryStack, topic: str) -> list[ReadRecord]:
    """Return the records in a topic."""
    return stack.read_committed(topic)


def test_all_that_is_written_is_signed_and_believed(stack: MemoryStack) -> None:
    """Half and op records of client, responder and daemon are signed; delivered ones are not."""
    answers = iter([Resolution.UNKNOWN, Resolution.COMMIT])
    with stack.producer(GROUP, checker=lambda _: next(answers)) as producer:
        sent(producer, b"by its producer").commit()
        sent(producer, b"by a check")
        stack.advance(60)  # UNKNOWN, after which a copy is put back; then COMMIT
    names = stack.config.names
    records = [*in_topic(stack, names.half), *in_topic(stack, names.op)]
    assert len(records) == 2 + 1 + 3
    assert all(SIGN in dict(each.headers) for each in records)
    assert values(stack) == [b"by its producer", b"by a check"]
    assert not any(SIGN in dict(each.headers) for each in stack.read_committed(TOPIC))
    assert stack.dead_letters() == []


def test_the_daemons_discard_is_signed(stack: MemoryStack) -> None:
    """A signed DISCARD is accepted: the dead letter is CHECK_TIMES."""
    with stack.producer(GROUP, checker=unknown) as producer:
        sent(producer, b"value")
        stack.advance(1_200)  # fifteen answers
    (letter,) = stack.dead_letters()
    assert letter.letter.reason is DeadReason.CHECK_TIMES


def test_without_a_key_file_nothing_is_signed(tmp_path: Path) -> None:
    """Without a key file, records have no further header."""
    assert tmp_path.exists()
    with MemoryStack(partitions=1) as stack:
        stack.create_topic(TOPIC)
        with stack.producer(GROUP, checker=unknown) as producer:
            sent(producer, b"value").commit()
            sent(producer, b"value")
            stack.advance(7)
        names = stack.config.names
        assert [name for each in in_topic(stack, names.half) for name, _ in each.headers] == [
            "RMQ_HALF"
        ] * 3
        assert [each.headers for each in in_topic(stack, names.op)] == [()] * 2


@pytest.mark.parametrize(
    "said",
    [
        {"kind": OpKind.COMMIT},
        {"kind": OpKind.ROLLBACK, "source": OpSource.CHECK},
        {"kind": OpKind.DISCARD, "source": OpSource.OPERATOR},
        {"kind": OpKind.DISCARD, "source": OpSource.CHECKER},
        {"kind": OpKind.COMMIT, "half_offset": 99},  # it would delay the ops after it
    ],
    ids=str,
)
def test_an_op_of_a_stranger_has_no_effect(stack: MemoryStack, said: dict[str, Any]) -> None:
    """An unsigned op becomes an INVALID dead letter, and the producer's decision applies."""
    with stack.producer(GROUP, checker=unknown) as producer:
        tx = sent(producer, b"value")
        stranger = Operator(stack)
        given = dict(said)
        stranger.write_op(given.pop("kind"), tx.id, 0, **given)
        stack.advance(1)
        assert len(stranger.listed().transactions) == 1
        assert values(stack) == []
        tx.commit()
        stack.advance(1)
    assert values(stack) == [b"value"]
    (letter,) = stack.dead_letters()
    assert letter.letter.reason is DeadReason.INVALID
    assert "unsigned" in letter.letter.detail


def test_a_half_record_of_a_stranger_is_a_dead_letter(stack: MemoryStack) -> None:
    """An unsigned half record and its COMMIT become INVALID dead letters."""
    stranger = Operator(stack)
    stranger.write_half("f" * 32, 0)
    stranger.write_op(OpKind.COMMIT, "f" * 32, 0)
    stack.advance(1)
    assert values(stack) == []
    reasons = [each.letter.reason for each in stack.dead_letters()]
    assert reasons == [DeadReason.INVALID] * 2


@pytest.mark.parametrize("demands", [True, False])
def test_a_forged_copy_replaces_no_message(tmp_path: Path, *, demands: bool) -> None:
    """An unsigned forged copy does not replace a message in a rebuilt ledger.

    If no signature is demanded, the forged payload is delivered: docs/how-to/secure.md.
    """
    table = a_table(demands=None if demands else [])
    key_file = write_key_file(tmp_path / "keys.toml", table)
    with MemoryStack(partitions=1, key_file=key_file) as stack:
        stack.create_topic(TOPIC)
        with stack.producer(GROUP, checker=unknown, transaction_timeout_ms=600_000) as producer:
            tx = sent(producer, b"two shirts")
            Operator(stack).write_half(tx.id, 0, origin_offset=0, first_append_timestamp=1)
            sent(producer, b"another").commit()
            stack.advance(1)
            stack.daemon.kill()
            stack.daemon.start()
            tx.commit()
            stack.advance(1)
        assert values(stack) == [b"another", b"two shirts" if demands else b"value"]


def test_a_moved_op_and_a_kept_op_have_no_effect(stack: MemoryStack) -> None:
    """The signature of one transaction's COMMIT is not valid for another transaction."""
    names = stack.config.names
    with stack.producer(GROUP, checker=unknown) as producer:
        sent(producer, b"first").commit()
        stack.advance(1)
        (op,) = in_topic(stack, names.op)
        tx = sent(producer, b"second")
        stranger = Operator(stack)
        stolen = [(SIGN, dict(op.headers)[SIGN])]
        value = (op.value or b"").replace(op.key or b"?", tx.id.encode())
        stranger.write_junk(names.op, 0, value, stolen)
        stack.advance(1)
        assert values(stack) == [b"first"]
    (letter,) = stack.dead_letters()
    assert "signature of other bytes" in letter.letter.detail


def test_a_client_without_a_key_for_its_group_does_not_start(
    stack: MemoryStack, tmp_path: Path
) -> None:
    """A producer without a key for its group fails at start."""
    other = write_key_file(tmp_path / "other.toml", a_table(a_key("client", groups=["bills"])))
    producer = stack.producer(GROUP, checker=unknown, key_file=str(other))
    with pytest.raises(ConfigError, match="no key by which a client may sign for group"):
        producer.start()


def test_a_send_without_a_valid_key_is_refused_before_the_local_transaction(
    stack: MemoryStack, tmp_path: Path
) -> None:
    """After the key expires, the next send raises ConfigError and stores nothing."""
    now_ms = stack.machine.broker.now_ms
    ends = a_key("client", valid_until_ms=now_ms + 60_000)
    other = write_key_file(tmp_path / "other.toml", a_table(ends))
    with stack.producer(GROUP, checker=unknown, key_file=str(other)) as producer:
        stack.advance(120)
        with pytest.raises(ConfigError, match="add one"):
            sent(producer, b"value")
    assert in_topic(stack, stack.config.names.half) == []


def test_a_daemon_that_could_not_read_its_own_copies_does_not_start(tmp_path: Path) -> None:
    """If signatures are demanded, a key file without a daemon key is an error."""
    path = write_key_file(tmp_path / "keys.toml", a_table(a_key("client")))
    with pytest.raises(ConfigError, match="no key of role daemon"):
        daemon_signatures(MemoryStack(key_file=path).config)
    assert daemon_signatures(MemoryStack().config) == NO_SIGNATURES


def test_a_daemon_without_a_valid_key_writes_no_copy(tmp_path: Path) -> None:
    """Without a valid key no copy is written; with another key it is, and nothing is lost."""
    path = tmp_path / "keys.toml"
    keys = [a_key(role) for role in ("client", "operator")]
    with MemoryStack(partitions=1, key_file=write_key_file(path, a_table())) as stack:
        stack.create_topic(TOPIC)
        now_ms = stack.machine.broker.now_ms
        with stack.producer(GROUP, checker=unknown) as producer:
            stack.daemon.kill()
            ended = a_key("daemon", valid_until_ms=now_ms + 1)
            write_key_file(path, a_table(*keys, ended))
            stack.daemon.start()
            tx = sent(producer, b"value")
            stack.advance(8)  # UNKNOWN is answered, and no copy can be written
            assert len(in_topic(stack, stack.config.names.half)) == 1
            stack.daemon.kill()
            write_key_file(path, a_table(*keys, ended, a_key("daemon", id="daemon-2")))
            stack.daemon.start()
            stack.advance(8)
            assert len(in_topic(stack, stack.config.names.half)) == 2
            tx.commit()
            stack.advance(1)
        assert values(stack) == [b"value"]
        assert stack.dead_letters() == []


def test_an_operator_signs(stack: MemoryStack) -> None:
    """An operator's signed decision is accepted; an earlier unsigned op is not."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        tx = sent(producer, b"value")
        stack.advance(1)
        operator.write_op(OpKind.ROLLBACK, tx.id, 0)  # unsigned
        decided = _decided(operator, tx.id, OpKind.COMMIT)
        stack.advance(1)
    assert decided.outcome is ActionOutcome.DONE
    assert values(stack) == [b"value"]
    assert operator.shown(tx.id).state == "COMMITTED"


def test_an_operator_without_a_key_writes_nothing(stack: MemoryStack, tmp_path: Path) -> None:
    """Without an operator key, the command's error names the missing key."""
    path = write_key_file(tmp_path / "other.toml", a_table(a_key("client")))
    signatures = daemon_signatures(stack.config)
    ring = signatures.ring
    assert ring is not None
    no_key = type(signatures)(ring, signatures.verifier, None)
    with pytest.raises(AdminSetupError, match="no key of role operator") as refused:
        check_signer(no_key, GROUP, 1)
    assert refused.value.group == GROUP
    with pytest.raises(AdminSetupError, match="no key of role operator"):
        signed_op(no_key, GROUP, 0, key=b"", value=b"", now_ms=1)
    assert signed_op(NO_SIGNATURES, GROUP, 0, key=b"", value=b"", now_ms=1) == []
    assert path.exists()


def test_init_judges_as_the_daemon_does(stack: MemoryStack) -> None:
    """An unsigned decision has no effect in `checker init`."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        tx = sent(producer, b"value")
        operator.write_op(OpKind.COMMIT, tx.id, 0)
        stack.advance(1)
        stack.daemon.stop()
        found = find_offsets(operator.cluster, operator.names, InitRequest(partition=0))
    assert found.to_apply == ()
    assert found.progress.half == 0  # undecided: H stays


def _decided(operator: Operator, transaction_id: str, kind: OpKind) -> Decided:
    requested = DecisionRequest(kind=kind, reason="the row is there")
    found = find_candidate(operator.cluster, operator.names, Wanted(id=transaction_id))
    with appending(operator.cluster) as appender:
        log = OperatorLog(operator.cluster, operator.names, appender, who="somebody")
        decider = Decider(operator.cluster, operator.names, log, appender, requested=requested)
        return decider.decide(found.transactions, found.ends)[0]


# --- an edit of the key file, and records that were already applied: docs/adr/0019
#
# A rebuild verifies by the current file. An edit with a future time changes nothing; an edit with
# a past time revokes decisions that were delivered.
DAY_MS = 86_400_000
DAEMON = a_key("daemon")
CLIENT = a_key("client")
NEXT = a_key("client", id="client-2", secret=secret("another"))


def demanding(from_ms: int) -> dict[str, Any]:
    """Return a file that demands signatures from `from_ms` on."""
    return a_table(DAEMON, CLIENT, NEXT, demands=[{"groups": ["*"], "from_ms": from_ms}])


def ending(until_ms: int) -> dict[str, Any]:
    """Return a file in which the first client's key expires."""
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
    """If the edited time is between half message and COMMIT, the message is delivered again.

    An older transaction is undecided, so that the rebuild reads the half message.
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
