"""Spans of OpenTelemetry: one trace from the send to the consumer, also where a check decides."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from halfbridge import HalfNotStoredError, InvalidMessageError, Message, MessageView, Resolution
from halfbridge.bridge.message_transaction import Transaction
from halfbridge.bridge.tracing import OpenTelemetryTracing
from halfbridge.bridge.transaction import IllegalTransitionError
from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.testkit.memory import MemoryStack, Step
from halfbridge.testkit.memory.programs import MemoryProducer
from tests.unit.bridge.fake_writer import FakeWriter, shared_around

TOPIC = "orders"
MESSAGE = Message(TOPIC, key=b"k", value=b"a secret", headers=[("user", b"1")])
EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="module", autouse=True)
def provider() -> None:
    """The provider of this process, which the daemon in memory takes: OpenTelemetry allows one."""
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        made = TracerProvider()
        made.add_span_processor(SimpleSpanProcessor(EXPORTER))
        trace.set_tracer_provider(made)


@pytest.fixture(autouse=True)
def no_spans() -> None:
    """No span of another test."""
    EXPORTER.clear()


@pytest.fixture
def stack() -> Iterator[MemoryStack]:
    """An installation whose daemon makes spans, with a real topic."""
    with MemoryStack(tracing=True) as started:
        started.create_topic(TOPIC)
        yield started


def found(_: MessageView) -> Resolution:
    """Answer as a checker that finds every row, in a span of its own as a driver makes."""
    with trace.get_tracer("driver").start_as_current_span("SELECT"):
        return Resolution.COMMIT


def producer_of(stack: MemoryStack) -> MemoryProducer:
    """Return a producer with spans."""
    return stack.producer("g", checker=found, tracing=OpenTelemetryTracing())


def spans() -> dict[str, ReadableSpan]:
    """Return the spans by their names, each of which is there once."""
    ended: Sequence[ReadableSpan] = EXPORTER.get_finished_spans()
    names = [span.name for span in ended]
    assert len(set(names)) == len(names), names
    return dict(zip(names, ended, strict=True))


def parents() -> dict[str, str | None]:
    """Return span -> its parent by name; all spans are in one trace."""
    by_name = spans()
    assert len({span.context.trace_id for span in by_name.values() if span.context}) == 1
    names = {span.context.span_id: name for name, span in by_name.items() if span.context}
    return {
        name: names[span.parent.span_id] if span.parent else None for name, span in by_name.items()
    }


def test_a_block_is_one_trace_up_to_the_consumer(stack: MemoryStack) -> None:
    """Request, transaction, send, statement, COMMIT, delivery and consumer; no payload."""
    tracing = OpenTelemetryTracing()
    tracer = trace.get_tracer("service")
    with producer_of(stack) as producer, tracer.start_as_current_span("POST /orders"):
        with producer.begin() as tx:
            tx.send(MESSAGE)
            with tracer.start_as_current_span("INSERT"):
                pass
        stack.wait_until_decided()
    (record,) = stack.read_committed(TOPIC)
    with tracing.processing(record.topic, record.headers):
        pass
    assert parents() == {
        "POST /orders": None,
        "transaction": "POST /orders",
        "send orders": "transaction",
        "INSERT": "transaction",
        "commit": "transaction",
        "deliver orders": "send orders",
        "process orders": "send orders",
    }
    made = spans()
    sent = made["send orders"]
    assert sent.kind is SpanKind.PRODUCER
    assert sent.attributes == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": TOPIC,
        "halfbridge.producer_group": "g",
        "halfbridge.transaction_id": tx.id,
    }
    assert [link.context.span_id for link in made["deliver orders"].links] == [
        sent.context.span_id if sent.context else 0
    ]
    processed = made["process orders"].attributes or {}
    assert processed["halfbridge.transaction_id"] == tx.id
    assert not [span for span in made.values() if "secret" in span.to_json()]
    assert record.headers[0] == ("user", b"1")
    assert [name for name, _ in record.headers[1:]] == [
        "traceparent",
        "__transactionId__",
        "__bornTimestamp__",
    ]


async def found_later(view: MessageView) -> Resolution:
    """Answer as `found`, after a wait, in which other checks may run."""
    await asyncio.sleep(0.01)
    return found(view)


def test_a_block_of_an_asynchronous_producer_is_one_trace(stack: MemoryStack) -> None:
    """Two requests at a time: each trace has its own transaction, send, statement and COMMIT."""
    tracer = trace.get_tracer("service")
    producer = stack.async_producer("g", checker=found_later, tracing=OpenTelemetryTracing())

    async def order(name: str) -> None:
        with tracer.start_as_current_span(name):
            async with producer.begin() as tx:
                await tx.send(MESSAGE)
                with tracer.start_as_current_span("INSERT"):
                    await asyncio.sleep(0.01)

    async def serve() -> None:
        async with producer:
            await asyncio.gather(order("POST /1"), order("POST /2"))
            await producer.flush()

    stack.run(serve())
    stack.wait_until_decided()
    traces: dict[int, dict[str, ReadableSpan]] = {}
    for span in EXPORTER.get_finished_spans():
        assert span.context
        traces.setdefault(span.context.trace_id, {})[span.name] = span
    assert len(traces) == 2
    for made in traces.values():
        ours = {"transaction", "send orders", "INSERT", "commit", "deliver orders"}
        (request,) = set(made) - ours
        names = {span.context.span_id: name for name, span in made.items() if span.context}
        found = {name: span.parent and names[span.parent.span_id] for name, span in made.items()}
        assert found == {
            request: None,
            "transaction": request,
            "send orders": "transaction",
            "INSERT": "transaction",
            "commit": "transaction",
            "deliver orders": "send orders",
        }


class ManyErrorsError(Exception):
    """An error that is false, as an empty list is."""

    def __len__(self) -> int:
        """Return how many errors there are."""
        return 0


def test_an_error_that_is_false_leaves_the_block_as_it_is(stack: MemoryStack) -> None:
    """The user's error is raised, and the block's span ends with it."""
    with producer_of(stack) as producer, pytest.raises(ManyErrorsError), producer.begin():
        raise ManyErrorsError
    assert spans()["transaction"].status.status_code is StatusCode.ERROR


def test_the_block_of_a_decided_transaction_is_refused(stack: MemoryStack) -> None:
    """As without tracing: its body would run, and its messages would be gone."""
    with producer_of(stack) as producer:
        tx = producer.begin()
        tx.send(Message(TOPIC, value=b"v"))
        tx.rollback(wait=True)
        with pytest.raises(IllegalTransitionError, match="a decided transaction"), tx:
            pytest.fail("the body runs")


def test_an_asynchronous_checker_has_its_span(stack: MemoryStack) -> None:
    """The check, and what the checker awaits, are in the trace of the send."""
    producer = stack.async_producer("g", checker=found_later, tracing=OpenTelemetryTracing())

    async def die() -> None:
        async with producer:
            tx = producer.begin()
            await tx.send(MESSAGE)
            await asyncio.sleep(60)

    stack.run(die())
    stack.wait_until_decided()
    made = parents()
    assert made["check orders"] == "send orders"
    assert made["SELECT"] == "check orders"
    assert (spans()["check orders"].attributes or {})["halfbridge.resolution"] == "COMMIT"


def test_the_error_of_an_asynchronous_block_is_the_status_of_its_span(stack: MemoryStack) -> None:
    """The rollback that the error causes has no error of its own."""
    producer = stack.async_producer("g", checker=found_later, tracing=OpenTelemetryTracing())

    async def fail() -> None:
        async with producer, producer.begin(rollback_on=ValueError) as tx:
            await tx.send(MESSAGE)
            raise ValueError("no stock")

    with pytest.raises(ValueError, match="no stock"):
        stack.run(fail())
    made = spans()
    assert made["transaction"].status.status_code is StatusCode.ERROR
    assert made["rollback"].status.status_code is StatusCode.UNSET


def test_a_check_after_a_death_is_in_the_trace_of_the_send(stack: MemoryStack) -> None:
    """Another process answers; its statements, the question and the delivery are in the trace."""
    producer = producer_of(stack)
    producer.start()
    with stack.crash_at(Step.AFTER_LOCAL_COMMIT), producer.begin() as tx:
        tx.send(MESSAGE)
        stack.mark()
    stack.restart()
    stack.wait_until_decided()
    (record,) = stack.read_committed(TOPIC)
    with OpenTelemetryTracing().processing(record.topic, record.headers):
        pass
    made = parents()
    assert made["check orders"] == "send orders"
    assert made["SELECT"] == "check orders"
    assert made["ask orders"] == made["deliver orders"] == "send orders"
    assert made["process orders"] == "send orders"
    assert "commit" not in made
    checked = spans()["check orders"].attributes or {}
    assert checked["halfbridge.resolution"] == "COMMIT"
    assert checked["halfbridge.check_number"] == 1


def test_without_a_current_span_the_first_send_holds_the_trace(stack: MemoryStack) -> None:
    """A transaction without a block, as `send_in_transaction` makes it, is one trace too."""
    with producer_of(stack) as producer:
        sent = producer.send_in_transaction(MESSAGE, lambda _message, _arg: Resolution.ROLLBACK)
        assert sent.resolution is Resolution.ROLLBACK
    assert parents() == {
        "send orders": None,
        "local transaction": "send orders",
        "rollback": "send orders",
    }


def test_the_senders_own_context_is_not_replaced(stack: MemoryStack) -> None:
    """A message that has a `traceparent` keeps it, once."""
    given = ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    with producer_of(stack) as producer:
        with producer.begin() as tx:
            tx.send(Message(TOPIC, value=b"v", headers=[given]))
        stack.wait_until_decided()
    (record,) = stack.read_committed(TOPIC)
    assert [each for each in record.headers if each[0] == given[0]] == [given]


def test_a_repeated_commit_has_one_span(stack: MemoryStack) -> None:
    """`commit` is idempotent, and the block's end repeats it."""
    with producer_of(stack) as producer, producer.begin() as tx:
        tx.send_all([MESSAGE])
        tx.commit()
        tx.commit(wait=True)
    assert sorted({*spans()} - {"deliver orders"}) == ["commit", "send orders", "transaction"]


def test_failures_are_the_status_of_their_spans() -> None:
    """A send and a block that failed say why; what was refused is an error as well."""
    writer = FakeWriter()
    shared = shared_around(writer)
    tx = OpenTelemetryTracing().transaction(shared)
    writer.answers = [KafkaFailure(Code.MSG_TIMED_OUT)]
    with pytest.raises(HalfNotStoredError), tx:
        tx.send(MESSAGE, timeout=5)
    made = spans()
    assert made["send orders"].status.status_code is StatusCode.ERROR
    assert (made["send orders"].attributes or {})["error.type"] == "HalfNotStoredError"
    assert made["transaction"].status.status_code is StatusCode.ERROR


def test_a_refused_message_ends_its_span() -> None:
    """So does one that is no message at all, without a span."""
    tx = OpenTelemetryTracing().transaction(shared_around(FakeWriter()))
    wrong: object = "orders"
    with pytest.raises(InvalidMessageError):
        tx.send_async(wrong)
    assert not spans()
    with pytest.raises(InvalidMessageError):
        tx.send_async(Message(TOPIC, value=b"v", immunity_ms=10**12))
    assert spans()["send orders"].status.status_code is StatusCode.ERROR


def test_the_context_counts_towards_the_size_of_a_transaction() -> None:
    """Client and daemon must agree on the limit: headers that tracing adds are the user's."""
    plain, traced = shared_around(FakeWriter()), shared_around(FakeWriter())
    tx = OpenTelemetryTracing().transaction(traced)
    other = Transaction(plain)
    tx.send_async(MESSAGE)
    other.send_async(MESSAGE)
    added = len("traceparent") + len("00-") + 32 + 1 + 16 + len("-01")
    assert tx._bytes - other._bytes == added


def test_headers_that_hold_no_context_begin_a_trace() -> None:
    """Records of another producer, and damaged headers, do not stop a consumer."""
    tracing = OpenTelemetryTracing()
    for headers in (None, [], [("traceparent", b"\xff")], [("traceparent", None)]):
        with tracing.processing(TOPIC, headers) as span:
            assert span.get_span_context().is_valid
    assert [each.parent for each in EXPORTER.get_finished_spans()] == [None] * 4


@pytest.mark.process
def test_nothing_loads_opentelemetry_unless_it_is_used() -> None:
    """A service without tracing pays no import, at start or at a send."""
    code = (
        "import sys; from halfbridge import Message, MessageView, Resolution;"
        "from halfbridge.testkit.memory import MemoryStack\n"
        "with MemoryStack() as stack:\n"
        "    stack.create_topic('orders')\n"
        "    with stack.producer('g', checker=lambda _: Resolution.COMMIT) as producer:\n"
        "        with producer.begin() as tx: tx.send(Message('orders', value=b'v'))\n"
        "        stack.wait_until_decided()\n"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


@pytest.mark.process
def test_without_the_package_an_error_says_what_to_install() -> None:
    """One line names the extra."""
    code = "import sys; sys.modules['opentelemetry'] = None\nimport halfbridge.bridge.tracing"
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, timeout=60, capture_output=True, text=True
    )
    assert done.stderr.splitlines()[-1].endswith("pip install 'halfbridge[otel]'")
