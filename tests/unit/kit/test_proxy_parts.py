"""Error codes are put where Kafka's protocol has them, and nothing else is touched."""

import asyncio
import struct

import pytest

from tests.kit.proxy_answers import with_error
from tests.kit.proxy_faults import Act, Faults, Mode, Rule, rule_from
from tests.kit.proxy_frames import Api, Frames, NotKafkaError, answer_header, request_header
from tests.kit.proxy_lane import LANE_BYTES_MAX, Lane, LaneFullError

CODE = 9999
THROTTLE = struct.pack(">i", 0)
PLAIN_TOPIC = struct.pack(">ih", 2, 3) + b"abc" + struct.pack(">ii", 5, 17)
COMPACT_TOPIC = b"\x03\x04abc\x06" + struct.pack(">i", 17)
LONG_NAME = b"n" * 200  # its length takes two bytes as a varint
LONG_TOPIC = b"\x03\xc9\x01" + LONG_NAME + b"\x06" + struct.pack(">i", 17)


def framed(body: bytes) -> bytes:
    """Return an answer's frame with correlation id 5."""
    return struct.pack(">ii", 4 + len(body), 5) + body


@pytest.mark.parametrize(
    ("api", "version", "before"),
    [
        (Api.END_TXN, 1, THROTTLE),
        (Api.LIST_OFFSETS, 5, THROTTLE + PLAIN_TOPIC),
        (Api.LIST_OFFSETS, 7, b"\0" + THROTTLE + COMPACT_TOPIC),
        (Api.END_TXN, 3, b"\0" + THROTTLE),
        (Api.ADD_OFFSETS_TO_TXN, 0, THROTTLE),
        (Api.HEARTBEAT, 3, THROTTLE),
        (Api.HEARTBEAT, 4, b"\0" + THROTTLE),
        (Api.TXN_OFFSET_COMMIT, 2, THROTTLE + PLAIN_TOPIC),
        (Api.TXN_OFFSET_COMMIT, 3, b"\0" + THROTTLE + COMPACT_TOPIC),
        (Api.TXN_OFFSET_COMMIT, 3, b"\0" + THROTTLE + LONG_TOPIC),
    ],
)
def test_the_first_error_code_is_replaced(api: Api, version: int, before: bytes) -> None:
    """In plain and in flexible versions, with topics or without."""
    rest = b"whatever follows"
    answer = framed(before + struct.pack(">h", 0) + rest)

    changed = with_error(api, version, answer, code=CODE)

    assert changed == framed(before + struct.pack(">h", CODE) + rest)


@pytest.mark.parametrize(("version", "before"), [(8, PLAIN_TOPIC), (10, b"\0" + COMPACT_TOPIC)])
def test_a_record_that_is_refused_has_no_offset(version: int, before: bytes) -> None:
    """A broker's answer to a Produce that it refuses names none."""
    answer = framed(before + struct.pack(">hq", 0, 17) + b"whatever follows")

    changed = with_error(Api.PRODUCE, version, answer, code=CODE)

    assert changed == framed(before + struct.pack(">hq", CODE, -1) + b"whatever follows")


@pytest.mark.parametrize(
    ("api", "version", "body"),
    [
        (Api.FETCH, 4, THROTTLE + b"\0\0"),  # not known
        (999, 0, THROTTLE + b"\0\0"),
        (Api.PRODUCE, 13, b"\0" + COMPACT_TOPIC + b"\0\0"),  # topics by id
        (Api.PRODUCE, 8, struct.pack(">i", 0) + bytes(20)),  # no topic in it
        (Api.END_TXN, 3, b"\1" + THROTTLE + b"\0\0"),  # tagged fields
        (Api.END_TXN, 1, THROTTLE),  # it ends before the code
        (Api.TXN_OFFSET_COMMIT, 3, b"\0" + THROTTLE + b"\xff"),
    ],
)
def test_what_has_no_known_error_code_is_refused(api: int, version: int, body: bytes) -> None:
    """A fault that was not injected must not look like one that was survived."""
    with pytest.raises(NotKafkaError, match=f"answer to {int(api)}, version {version}"):
        with_error(api, version, framed(body), code=CODE)


# --- which fault hits which request --------------------------------------------------------


def test_a_rule_hits_its_api_on_its_nodes_so_many_times() -> None:
    """Another kind of request, another broker or another act is left alone; then it is used up."""
    faults = Faults()
    faults.add(Rule(api=Api.END_TXN, act=Act.SWALLOW, nodes=(2,), times=2))

    assert faults.take(2, Api.PRODUCE, (Act.SWALLOW,)) is None
    assert faults.take(1, Api.END_TXN, (Act.SWALLOW,)) is None
    assert faults.take(2, Api.END_TXN, (Act.HOLD, Act.STRAND)) is None
    hits = [faults.take(2, Api.END_TXN, (Act.SWALLOW,)) is not None for _ in range(3)]

    assert hits == [True, True, False]
    assert faults.counts == {"swallow:26": 2}


def test_a_rule_without_limits_stays_until_it_is_cleared() -> None:
    """No nodes means all of them, no times means always."""
    faults = Faults()
    faults.add(Rule(api=Api.FETCH, act=Act.HOLD, delay_ms=5))

    assert all(faults.take(node, Api.FETCH, (Act.HOLD,)) for node in range(100))
    faults.clear_rules()
    assert faults.take(1, Api.FETCH, (Act.HOLD,)) is None


def test_a_rule_with_a_text_hits_what_holds_it() -> None:
    """A transactional id stands in its requests as it is."""
    faults = Faults()
    faults.add(Rule(api=Api.PRODUCE, act=Act.HOLD, text="scene-0"))

    assert faults.take(1, Api.PRODUCE, (Act.HOLD,), frame=b"..scene-1..") is None
    assert faults.take(1, Api.PRODUCE, (Act.HOLD,)) is None
    assert faults.take(1, Api.PRODUCE, (Act.HOLD,), frame=b"..scene-0..") is not None


def test_a_rule_with_a_share_hits_about_as_many() -> None:
    """Those that it spares are counted too."""
    faults = Faults()
    faults.add(Rule(api=Api.END_TXN, act=Act.HOLD, share=1 / 3))

    hits = sum(faults.take(1, Api.END_TXN, (Act.HOLD,)) is not None for _ in range(3000))

    assert 900 < hits < 1100
    assert faults.counts == {"hold:26": hits, "spared:26": 3000 - hits}


def test_links_are_open_unless_they_are_set() -> None:
    """A mode and a delay belong to one broker's traffic."""
    faults = Faults()
    faults.set_link([1], Mode.BLACKHOLE, 0)
    faults.set_link([3], Mode.OPEN, 40)

    assert [faults.mode(node) for node in (1, 2, 3)] == [Mode.BLACKHOLE, Mode.OPEN, Mode.OPEN]
    assert faults.delays_ms[3] == 40


def test_rules_travel_unchanged() -> None:
    """What the owner writes, the process reads."""
    rule = Rule(api=Api.END_TXN, act=Act.STRAND, nodes=(1, 3), delay_ms=250, times=4, error=9)
    assert rule_from(rule.to_plain()) == rule


# --- frames cut out of a stream of bytes ---------------------------------------------------


def as_frame(body: bytes) -> bytes:
    """Return a body with its length in front."""
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
def test_frames_come_out_whole_however_bytes_come_in(step: int) -> None:
    """Lengths and bodies may be split anywhere; nothing is lost, nothing is joined."""
    sent = [as_frame(bytes([n]) * (4 + n * 5)) for n in range(6)]
    stream = b"".join(sent)
    frames = Frames()

    found = [f for at in range(0, len(stream), step) for f in frames.feed(stream[at : at + step])]

    assert found == sent


@pytest.mark.parametrize("length", [-1, 0, 3, 2**31 - 1])
def test_a_length_that_no_frame_has(length: int) -> None:
    """Bytes that are not Kafka's are named as such, not waited for."""
    with pytest.raises(NotKafkaError):
        Frames().feed(struct.pack(">i", length))


def test_headers() -> None:
    """Key, version and correlation id of a request, correlation id of its answer."""
    request = as_frame(struct.pack(">hhi", Api.END_TXN, 3, -7) + b"rest")
    assert request_header(request) == (Api.END_TXN, 3, -7)
    assert answer_header(as_frame(struct.pack(">i", -7))) == -7
    with pytest.raises(NotKafkaError):
        request_header(as_frame(b"1234"))


# --- bytes that are late keep their order --------------------------------------------------


def test_what_is_late_holds_up_what_is_behind_it() -> None:
    """Nothing overtakes, whatever its own delay; at once means at once when nothing waits."""

    async def run() -> list[bytes]:
        written: list[bytes] = []
        last = asyncio.Event()

        def write(data: bytes) -> None:
            written.append(data)
            if data == b"4":
                last.set()

        lane = Lane(asyncio.get_running_loop(), write)
        lane.put(b"1")
        assert written == [b"1"]
        lane.put(b"2", 0.05)
        lane.put(b"3")
        lane.put(b"4", 0.01)
        lane.put(b"")
        assert written == [b"1"]
        assert lane.left_s > 0
        await last.wait()
        lane.put(b"5")
        return written

    assert asyncio.run(run()) == [b"1", b"2", b"3", b"4", b"5"]


def test_a_lane_holds_only_so_much_and_forgets_when_closed() -> None:
    """A full lane says so; what waited on a closed one is never written."""

    async def run() -> list[bytes]:
        written: list[bytes] = []
        loop, was_due = asyncio.get_running_loop(), asyncio.Event()
        lane = Lane(loop, written.append)
        lane.put(bytes(LANE_BYTES_MAX), 0.01)
        with pytest.raises(LaneFullError):
            lane.put(b"1")
        lane.close()
        loop.call_later(0.01, was_due.set)  # a loop calls in the order of due times
        await was_due.wait()
        return written

    assert asyncio.run(run()) == []
