"""Resume and redeliver on an installation in memory: each message once, also after crashes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from halfbridge import Resolution
from halfbridge.checker.admin.dead.describe import exported, given
from halfbridge.checker.admin.dead.letters import Choice, Remedy, Wanted
from halfbridge.checker.admin.dead.redoing import purge, redo
from halfbridge.checker.errors import AdminError
from halfbridge.serde.avro import DEAD_LETTER, HALF_METADATA, MarkAction
from halfbridge.serde.headers import DEAD, HALF
from halfbridge.serde.records import DeadReason, OpKind
from halfbridge.testkit.memory import MemoryStack
from halfbridge.testkit.memory.broker import Rights
from halfbridge.testkit.memory.process import ProcessDeadError
from tests.kit.dead_letters import TOPIC, Scene, lose, order, refusals, sent, txn
from tests.kit.records import A_HALF, A_LETTER

HOUR_S = 3_600


@pytest.fixture
def scene() -> Iterator[Scene]:
    """An installation with a real topic."""
    with MemoryStack(partitions=1) as stack:
        stack.create_topic(TOPIC)
        yield Scene(stack)


def reasons(scene: Scene) -> list[DeadReason]:
    """Return the reasons of the dead letters."""
    return [each.letter.reason for each in scene.stack.dead_letters()]


# --- redeliver -----------------------------------------------------------------------------


def test_what_could_not_be_delivered_is_delivered_once(scene: Scene) -> None:
    """Two transactions are redelivered in decision order; a second command does nothing."""
    scene.undeliverable(1, count=2)
    scene.undeliverable(2)
    scene.settle()
    assert reasons(scene) == [DeadReason.UNDELIVERABLE] * 3
    scene.stack.create_topic("absent")
    for _ in range(2):
        scene.redo(Remedy.REDELIVER)
        scene.settle()
        assert scene.delivered("absent") == sent((1, 0), (1, 1), (2, 0))
    assert [each.action for each in scene.marks()] == [MarkAction.REDELIVERED] * 3
    assert {each.actor for each in scene.marks()} == {"ann@host"}
    assert [each.state for each in scene.find()] == ["REDELIVERED"] * 2


def test_what_is_refused_again_can_be_redelivered_again(scene: Scene) -> None:
    """Life 1 becomes dead letters because the daemon may not write; life 2 is delivered."""
    scene.undeliverable(1)
    scene.settle()
    scene.stack.create_topic("absent")
    rights = scene.stack.machine.broker.rights
    rights["worker memory-0"] = Rights(unwritten={"absent"})
    scene.redo(Remedy.REDELIVER, 1)
    scene.settle()
    assert [(each.key.resume_count, each.state) for each in scene.find(1)] == [
        (0, "REDELIVERED"),
        (1, "OPEN"),
    ]
    rights.clear()
    scene.redo(Remedy.REDELIVER, 1)
    scene.settle()
    assert scene.delivered("absent") == sent((1, 0))


def test_what_has_no_topic_is_not_redelivered(scene: Scene) -> None:
    """The refusal names the topic and its create command; other transactions are redelivered."""
    scene.undeliverable(1, count=2)
    scene.incomplete(2)
    scene.settle()
    reported = scene.redo(Remedy.REDELIVER, accept_partial=True)
    scene.settle()
    create = "halfbridge topics create absent --type transaction --bootstrap-servers memory"
    assert refusals(reported) == [f"topic absent is missing: run {create}"]
    assert [each.state for each in scene.find(1, 2)] == ["OPEN", "REDELIVERED"]
    assert scene.delivered() == sent((2, 0), (2, 2))


def test_what_has_no_partition_is_not_redelivered(scene: Scene) -> None:
    """A message for a partition that the topic does not have is refused; nothing is written."""
    scene.op(1, OpKind.COMMIT, scene.half(1, 0, real_partition=3), message_count=1)
    scene.settle()
    (refusal,) = refusals(scene.redo(Remedy.REDELIVER))
    assert refusal.startswith("message 0 is for partition 3 of topic orders, which has 1 partition")
    assert scene.marks() == []


def test_a_topic_that_the_operator_may_not_see_does_not_count_as_missing(scene: Scene) -> None:
    """Redelivery needs no operator's right on real topics."""
    scene.undeliverable(1)
    scene.settle()
    scene.stack.create_topic("absent")
    letters = scene.letters()
    scene.stack.machine.broker.rights["operator 1"] = Rights(unseen={"absent"})
    reported = redo(letters, order(1), Choice(remedy=Remedy.REDELIVER), lambda _reported: True)
    scene.settle()
    assert refusals(reported) == []
    assert scene.delivered("absent") == sent((1, 0))


def test_an_incomplete_one_waits_for_the_missing_message(scene: Scene) -> None:
    """Redelivery is refused until message 1 is given, and then delivers all three messages."""
    scene.incomplete(1)
    scene.settle()
    assert "messages 1 are missing" in refusals(scene.redo(Remedy.REDELIVER, 1))[0]
    assert scene.marks() == []
    (found,) = scene.find(1)
    (examined,) = scene.letters().examine(found.letters[:1])
    line = exported(found, examined) | {"message_index": 1, "value": "MS4x"}
    identity, message = given(json.dumps(line))
    scene.redo(Remedy.REDELIVER, 1, given={identity: message})
    scene.settle()
    assert scene.delivered() == sent((1, 0), (1, 1), (1, 2))


def test_an_incomplete_one_is_delivered_in_part_if_the_operator_says_so(scene: Scene) -> None:
    """With accept_partial, messages 0 and 2 are delivered with their indices."""
    scene.incomplete(1)
    scene.settle()
    scene.redo(Remedy.REDELIVER, 1, accept_partial=True)
    scene.settle()
    assert scene.delivered() == sent((1, 0), (1, 2))


def test_a_late_message_completes_its_transaction(scene: Scene) -> None:
    """With the missing message as a LATE dead letter, all three are delivered without a file."""
    scene.incomplete(1)
    scene.stack.advance(seconds=1)
    scene.half(1, 1)
    scene.settle()
    scene.redo(Remedy.REDELIVER, 1)
    scene.settle()
    assert scene.delivered() == sent((1, 0), (1, 1), (1, 2))


def test_extra_and_late_messages_follow_their_transaction(scene: Scene) -> None:
    """An EXTRA message 2 and another transaction's LATE message 1 are delivered once."""
    scene.extra(1)
    scene.late(2)
    scene.settle()
    assert scene.delivered() == sent((1, 0), (1, 1), (2, 0))
    scene.redo(Remedy.REDELIVER)
    scene.settle()
    assert scene.delivered() == sent((1, 0), (1, 1), (2, 0), (1, 2), (2, 1))


def test_one_message_is_redelivered_only_if_it_is_named(scene: Scene) -> None:
    """Message 1 alone is delivered; message 0 stays open, and is redelivered later."""
    scene.undeliverable(1, count=2)
    scene.settle()
    scene.stack.create_topic("absent")
    scene.redo(Remedy.REDELIVER, 1, messages=frozenset((1,)))
    scene.settle()
    assert scene.delivered("absent") == sent((1, 1))
    assert [each.state for each in scene.find(1)] == ["PARTLY"]
    scene.redo(Remedy.REDELIVER, 1)
    scene.settle()
    assert scene.delivered("absent") == sent((1, 1), (1, 0))


def test_a_policy_that_was_corrected_lets_a_message_through(tmp_path: Any) -> None:
    """A message that is NOT_ALLOWED by the policy is delivered under the corrected policy."""
    policy = tmp_path / "policy.toml"
    policy.write_text('[groups]\norder-service = ["invoices"]\n')
    with MemoryStack(partitions=1, policy_file=policy) as stack:
        stack.create_topic(TOPIC)
        scene = Scene(stack)
        scene.op(1, OpKind.COMMIT, scene.half(1, 0), message_count=1)
        scene.settle()
        assert reasons(scene) == [DeadReason.NOT_ALLOWED]
        policy.write_text('[groups]\norder-service = ["orders"]\n')
        stack.daemon.stop()
        stack.daemon.start()
        scene.redo(Remedy.REDELIVER, 1)
        scene.settle()
        assert scene.delivered() == sent((1, 0))


def stubbed(scene: Scene) -> None:
    """Make transaction 1 a stub: the dead-letter topic accepts 600 bytes."""
    topic = scene.stack.machine.broker.topic(scene.names.dead)
    topic.alter({"max.message.bytes": "600"})
    scene.stack.advance(seconds=15)  # the daemon asks for limits every ten seconds
    metadata = A_HALF._replace(
        transaction_id=txn(1), producer_group="order-service", real_topic="absent"
    )
    headers = [(HALF, HALF_METADATA.encode(metadata))]
    offset = scene.put(scene.names.half, b"k", bytes(1_000), headers)
    scene.op(1, OpKind.COMMIT, offset, message_count=1)
    scene.settle()
    assert [each.letter.is_stub for each in scene.stack.dead_letters()] == [True]


def test_a_stub_is_followed_into_the_half_topic(scene: Scene) -> None:
    """The redelivered message has the body from the half topic."""
    stubbed(scene)
    scene.stack.create_topic("absent")
    scene.redo(Remedy.REDELIVER)
    scene.settle()
    assert scene.delivered("absent") == [(txn(1), 0, bytes(1_000))]


def test_a_stub_whose_half_record_was_deleted_needs_a_file(scene: Scene) -> None:
    """A stub whose half record was deleted is refused, also with accept_unverified."""
    stubbed(scene)
    scene.stack.machine.broker.delete_records((scene.names.half, 0), 1)
    why = refusals(scene.redo(Remedy.REDELIVER, accept_unverified=True))[0]
    assert "deleted with the half topic's retention" in why


# --- resume --------------------------------------------------------------------------------


def test_a_resumed_transaction_is_asked_about_from_the_start(scene: Scene) -> None:
    """A resumed transaction is discarded after 15 more UNKNOWN; resumed again, it is committed."""
    answers: list[Resolution] = []
    answer = [Resolution.UNKNOWN]

    def check(_view: Any) -> Resolution:
        answers.append(answer[0])
        return answer[0]

    transaction_id = lose(scene.stack, check, [b"a", b"b"])
    wanted = Wanted(ids=frozenset((transaction_id,)), is_open=True)
    for life in (1, 2):
        scene.stack.advance(seconds=HOUR_S)
        assert len(answers) == 15 * life
        assert reasons(scene) == [DeadReason.CHECK_TIMES] * 2 * life
        if life == 2:
            answer[0] = Resolution.COMMIT
        redo(
            scene.letters(),
            order(wanted=wanted),
            Choice(remedy=Remedy.RESUME),
            lambda _reported: True,
        )
        assert scene.stack.undecided() == [transaction_id]
    scene.stack.wait_until_decided()
    assert [value for _, _, value in scene.delivered()] == [b"a", b"b"]


@pytest.mark.more  # 72 hours of virtual time take seconds
def test_an_aged_and_a_discarded_transaction_are_resumed(scene: Scene) -> None:
    """Transactions discarded for AGE (72 h without answers) and OPERATOR are undecided again."""
    scene.half(1, 0)
    scene.stack.advance(seconds=80 * HOUR_S)
    scene.discarded(2)
    scene.settle()
    assert reasons(scene) == [DeadReason.AGE, DeadReason.OPERATOR, DeadReason.OPERATOR]
    scene.redo(Remedy.RESUME)
    assert scene.stack.undecided() == [txn(1), txn(2)]
    assert scene.delivered() == []


@pytest.mark.parametrize(
    ("remedy", "hint"),
    [(Remedy.REDELIVER, "use `dead resume`"), (Remedy.RESUME, "use `dead redeliver`")],
)
def test_the_wrong_command_names_the_right_one(scene: Scene, remedy: Remedy, hint: str) -> None:
    """Redeliver of a discarded transaction, and resume of a committed one, are refused."""
    if remedy is Remedy.REDELIVER:
        scene.discarded(1)
    else:
        scene.extra(1)
    scene.settle()
    assert hint in refusals(scene.redo(remedy, 1))[0]
    assert scene.marks() == []


# --- crashes and concurrent commands -------------------------------------------------------


def killed_at(scene: Scene, request: int, *, is_behind: bool, remedy: Remedy) -> bool:
    """Run a command that crashes at a request; return whether it reached the request."""
    scene.network.requests, scene.network.dies_at = 0, request
    scene.network.is_behind = is_behind
    try:
        scene.redo(remedy)
    except ProcessDeadError:
        return True
    finally:
        scene.network.dies_at = 0
    return False


@pytest.mark.more
@pytest.mark.parametrize("is_behind", [False, True])
@pytest.mark.parametrize("remedy", [Remedy.REDELIVER, Remedy.RESUME])
def test_a_command_that_dies_at_any_request_is_repeated(remedy: Remedy, is_behind: bool) -> None:
    """If a command crashes before or after any request, its repetition delivers messages once."""
    request, reached = 0, True
    while reached:
        request += 1
        with MemoryStack(partitions=1) as stack:
            stack.create_topic(TOPIC)
            scene = Scene(stack)
            if remedy is Remedy.REDELIVER:
                scene.undeliverable(1, count=2)
                scene.extra(2)
            else:
                scene.discarded(1)
                scene.discarded(2, count=1)
            scene.settle()
            stack.create_topic("absent")
            reached = killed_at(scene, request, is_behind=is_behind, remedy=remedy)
            scene.redo(remedy)
            scene.settle()
            if remedy is Remedy.REDELIVER:
                assert scene.delivered("absent") == sent((1, 0), (1, 1))
                assert scene.delivered() == sent((2, 0), (2, 1), (2, 2))
            else:
                assert stack.undecided() == [txn(1), txn(2)]
            assert len(scene.marks()) == 3
            lives = [each.key.resume_count for each in scene.find()]
            assert lives == [0, 0]
    assert request > 8


def test_a_second_operator_fences_the_first(scene: Scene) -> None:
    """If a second command runs while the first waits for consent, the first writes nothing."""
    scene.undeliverable(1)
    scene.settle()
    scene.stack.create_topic("absent")
    first = scene.letters()

    def rival(_reported: Any) -> bool:
        scene.redo(Remedy.REDELIVER)
        return True

    assert redo(first, order(), Choice(remedy=Remedy.REDELIVER), rival) == []
    scene.settle()
    assert scene.delivered("absent") == sent((1, 0))


@pytest.mark.more
def test_a_rival_may_come_at_any_request(scene: Scene) -> None:
    """If another command runs at any request of a command, each message is delivered once.

    The first command raises an error that it was fenced, or has nothing left to do.
    """
    fenced = 0
    for number in range(1, 40):
        scene.extra(number)
        scene.settle()
        scene.network.requests, scene.network.dies_at = 0, number
        scene.network.rival = lambda: scene.redo(Remedy.REDELIVER)
        try:
            scene.redo(Remedy.REDELIVER)
        except AdminError as error:
            assert "another operator's command took over" in str(error)  # noqa: PT017 (it need not be raised)
            fenced += 1
        scene.settle()
        assert scene.delivered().count(*sent((number, 2))) == 1
        if scene.network.dies_at:
            break  # the command did not reach this request
    assert scene.network.dies_at
    assert fenced > 5


# --- forged and unproven dead letters ------------------------------------------------------


def test_a_forged_dead_letter_is_refused(scene: Scene) -> None:
    """A forged dead letter of a rolled back transaction is refused and not delivered."""
    scene.op(1, OpKind.ROLLBACK, scene.half(1, 0))
    scene.settle()
    half = A_HALF._replace(transaction_id=txn(1), producer_group="order-service", real_topic=TOPIC)
    letter = A_LETTER._replace(
        reason=DeadReason.UNDELIVERABLE, source_topic=scene.names.half, source_offset=0, op_offset=0
    )
    headers = [
        ("trace", b"1"),
        (HALF, HALF_METADATA.encode(half._replace(born_timestamp=1_700_000_000_000))),
        (DEAD, DEAD_LETTER.encode(letter)),
    ]
    scene.put(scene.names.dead, b"k", b"1.0", headers)
    assert "contradicts" in refusals(scene.redo(Remedy.REDELIVER, accept_unverified=True))[0]
    scene.settle()
    assert scene.delivered() == []


def test_an_old_dead_letter_has_to_be_believed_by_the_operator(scene: Scene) -> None:
    """If half and op are deleted, the dead letter is delivered only with accept_unverified."""
    scene.undeliverable(1)
    scene.settle()
    scene.stack.create_topic("absent")
    for topic in (scene.names.half, scene.names.op):
        scene.stack.machine.broker.delete_records((topic, 0), 1)
    assert "--accept-unverified" in refusals(scene.redo(Remedy.REDELIVER))[0]
    scene.redo(Remedy.REDELIVER, accept_unverified=True)
    scene.settle()
    assert scene.delivered("absent") == sent((1, 0))


# --- purge ---------------------------------------------------------------------------------


def test_a_purge_deletes_what_is_dealt_with_from_the_start(scene: Scene) -> None:
    """A purge deletes redelivered letters up to the first open one; gives_up deletes that too."""
    scene.extra(1)
    scene.settle()
    scene.extra(2)
    scene.settle()
    scene.redo(Remedy.REDELIVER, 1)
    dead = scene.stack.machine.broker.partition((scene.names.dead, 0))
    shown: list[Any] = []
    purged = purge(scene.letters(), order(), lambda meant: not shown.append(meant), gives_up=False)
    assert purged is not None
    assert (purged.letters, purged.given_up) == (1, ())
    assert shown == [purged]
    assert [each.name for each in scene.find()] == [txn(2)]
    start = dead.start
    given_up = purge(scene.letters(), order(2), lambda _meant: True, gives_up=True)
    assert given_up is not None
    assert given_up.letters == 1
    assert dead.start > start
    assert scene.find() == []


def test_a_purge_needs_consent(scene: Scene) -> None:
    """Without the operator's consent, or with dry_run, nothing is marked or deleted."""
    scene.extra(1)
    scene.settle()
    assert purge(scene.letters(), order(1), lambda _meant: False, gives_up=True) is None
    meant = purge(scene.letters(), order(1, dry_run=True), lambda _: True, gives_up=True)
    assert meant is not None
    assert meant.letters == 1
    assert scene.marks() == []
    assert [each.state for each in scene.find()] == ["OPEN"]


@pytest.mark.more
@pytest.mark.parametrize("is_behind", [False, True])
def test_a_purge_that_dies_at_any_request_is_repeated(is_behind: bool) -> None:
    """A purge repeated after a crash at any request never deletes another, open transaction."""
    request, reached = 0, True
    while reached:
        request += 1
        with MemoryStack(partitions=1) as stack:
            stack.create_topic(TOPIC)
            scene = Scene(stack)
            scene.extra(1)
            scene.settle()
            scene.extra(2)
            scene.settle()
            scene.network.requests, scene.network.dies_at = 0, request
            scene.network.is_behind = is_behind
            reached = False
            try:
                purge(scene.letters(), order(1), lambda _meant: True, gives_up=True)
            except ProcessDeadError:
                reached = True
            scene.network.dies_at = 0
            done = purge(scene.letters(), order(1), lambda _meant: True, gives_up=True)
            assert done is not None
            assert [each.name for each in scene.find() if each.open_letters] == [txn(2)]
            assert [each.letter.reason for each in stack.dead_letters()] == [DeadReason.EXTRA]
            scene.redo(Remedy.REDELIVER)
            scene.settle()
            assert scene.delivered().count(*sent((2, 2))) == 1
            assert sent((1, 2))[0] not in scene.delivered()
    assert request > 5


def test_letters_in_several_partitions_are_marked_where_they_stand() -> None:
    """With three dead-letter partitions, all letters are marked and delivered once."""
    with MemoryStack(partitions=2) as stack:
        stack.create_topic(TOPIC)
        scene = Scene(stack)
        stack.machine.broker.grow_topic(scene.names.dead, 3)
        for number in range(1, 13):
            scene.extra(number)
        scene.settle()
        found = scene.find()
        places = {letter.place for each in found for letter in each.letters}
        scene.redo(Remedy.REDELIVER)
        scene.settle()
        assert {(each.partition, each.offset) for each in places} == {
            (about.partition, about.offset) for each in scene.find() for about in each.marks
        }
        assert len(scene.delivered()) == 3 * 12
        redelivered = [each for each in scene.delivered() if each[1] == 2]
        assert redelivered == sent(*((number, 2) for number in range(1, 13)))
