"""Controls: other methods lose and double messages in steps in which halfbridge does not."""

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from halfbridge.bridge.message import Message
from halfbridge.sql.local_messages.relay import RelayStep
from halfbridge.testkit.history import Anomaly
from halfbridge.testkit.stack import HalfbridgeStack, OwnTopics
from tests.faults.stage import Stage, seed_of_run
from tests.kit.waiting import until
from tests.sql.databases import Database
from tests.sql.fence_kills_scene import SETTLED_WITHIN_S, THREADS, FenceScene
from tests.sql.fence_plan import Kind
from tests.sql.fence_service import DECIDED
from tests.sql.relaying import scene

pytestmark = pytest.mark.broker

PLAIN = "plain"
ROWS = 20
PROCESS_S_MAX = 120.0


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
@pytest.mark.parametrize("is_naive", [True, False], ids=["naive", "fence"])
def test_work_that_is_done_after_its_check(
    stage: Stage, database: Database, *, is_naive: bool
) -> None:
    """A check's ROLLBACK is in the log before the work: "not found: roll back" loses the messages.

    With the fence the same work is refused: no rows and no messages.
    """
    made = FenceScene(stage, database, seed=seed_of_run())
    made.begin(services=1)
    late = ("--only", Kind.LATE.name, "--late-behind", DECIDED, "--blocks", "1")
    made.start(0, *late, *["--naive"][: int(is_naive)])

    def have_ended() -> bool:
        made.tell_decisions()
        return len(made.blocks()) == THREADS

    until("blocks have ended", have_ended, within_s=SETTLED_WITHIN_S)
    verdict = made.finish()
    ended = {each["ended"] for each in made.blocks()}
    if not is_naive:
        assert ended == {"FencedError"}
        assert verdict.ok, verdict.describe()
        assert made.rows == []
        assert made.delivered() == []
        return
    assert ended == {""}
    assert len(made.rows) == len(made.blocks())
    assert made.delivered() == []
    # A check that is repeated, on a slow machine, is answered by the same ROLLBACK once more.
    phantoms = {f.transaction_id for f in verdict.findings if f.anomaly is Anomaly.PHANTOM}
    assert phantoms == {row.transaction_id for row in made.rows}, verdict.describe()
    assert len(phantoms) == len(made.rows)


def _run(*words: str) -> int:
    return subprocess.run(
        [sys.executable, "-m", *words],
        check=False,
        timeout=PROCESS_S_MAX,
        cwd=Path(__file__).parents[2],
    ).returncode


@pytest.mark.parametrize("step", [PLAIN, RelayStep.SENT.value, RelayStep.COMMITTED.value])
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_relay_that_is_killed_between_send_and_mark(
    database: Database, halfbridge_stack: HalfbridgeStack, halfbridge_topics: OwnTopics, step: str
) -> None:
    """A plain relay's successor sends all rows again; halfbridge's relay sends each row once.

    SIGKILL ends one process; another one then runs until no rows are left.
    """
    stack, topic = halfbridge_stack, halfbridge_topics.create("orders")
    with scene(database.engine(), stack, topic) as made:
        with made.messages.engine.begin() as connection:
            given = [Message(topic, key=b"k%d" % (n % 3), value=b"%d" % n) for n in range(ROWS)]
            made.messages.add_all(connection, given)
        if step == PLAIN:
            command = ["tests.sql.plain_relay", database.url, stack.bootstrap_servers]
            assert _run(*command, "--die-when-sent") == -signal.SIGKILL
            assert _run(*command, "--once") == 0
        else:
            command = ["tests.sql.dying_relay", database.url]
            command += ["--bootstrap-servers", stack.bootstrap_servers]
            command += ["--prefix", stack.topic_prefix, "--group", made.fence.producer_group]
            command += ["--timeout-ms", str(stack.config.transaction_timeout_ms)]
            assert _run(*command, "--die-at", step) == -signal.SIGKILL
            assert _run(*command) == 0
            stack.wait_until_decided()
        assert set(made.states()) == {"GLOBAL_COMMIT*"}
    times = 2 if step == PLAIN else 1
    records = stack.read_committed(topic, count=ROWS * times)
    assert Counter(int(record.value or b"") for record in records) == dict.fromkeys(
        range(ROWS), times
    )
