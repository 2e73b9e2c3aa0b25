"""Spans of OpenTelemetry for sends, decisions, checks and consumers; users pass it to a producer.

The only module of the client that imports OpenTelemetry, and nothing imports it at start-up. A send
span's context travels in headers of the message (`traceparent`), and so arrives in the real record
and in each check. Names follow OpenTelemetry's conventions for messaging. No span has a payload.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from halfbridge.bridge.message import Answer, Message, Resolution
from halfbridge.bridge.message_transaction import Transaction
from halfbridge.extras import needs
from halfbridge.serde.headers import TRANSACTION_ID

try:
    from opentelemetry import propagate
    from opentelemetry.context import Context, get_current
    from opentelemetry.trace import (
        Span,
        SpanKind,
        Status,
        StatusCode,
        get_current_span,
        get_tracer,
        set_span_in_context,
    )
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(needs("tracing", "opentelemetry"), name=error.name) from error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Tracer, TracerProvider

    from halfbridge.bridge.futures import DecisionFuture, SendFuture
    from halfbridge.bridge.message import MessageView
    from halfbridge.bridge.shared import Shared
    from halfbridge.bridge.transaction import Event
    from halfbridge.serde.headers import Header

    Checker = Callable[[MessageView], "Resolution | Answer"]
    AsyncChecker = Callable[[MessageView], Awaitable["Resolution | Answer"]]
    Local = Callable[[Message, Any], Resolution]

_SCOPE = "halfbridge"
_TRANSACTION = "halfbridge.transaction_id"
_NUMBER = "halfbridge.check_number"
_RESOLUTION = "halfbridge.resolution"


def tracer_of(provider: TracerProvider | None) -> Tracer:
    """Return the tracer of all spans; None: of the process's provider, once it has one."""
    return get_tracer(_SCOPE, tracer_provider=provider)


def attributes(
    name: str, kind: str, *, group: str = "", topic: str = "", transaction_id: str = ""
) -> dict[str, str]:
    """Return the attributes of a span; `kind` is a messaging.operation.type."""
    pairs = {
        "messaging.system": "kafka",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
        "halfbridge.producer_group": group,
        _TRANSACTION: transaction_id,
    }
    return {key: value for key, value in pairs.items() if value}


def context_of(headers: Iterable[Header] | None) -> Context:
    """Return the context that a record's headers carry; an empty one where they carry none."""
    fields = propagate.get_global_textmap().fields
    carrier = {
        name: value.decode("utf-8", "replace")
        for name, value in headers or ()
        if name in fields and value is not None
    }
    return propagate.extract(carrier)


class OpenTelemetryTracing:
    """Makes the spans of a producer, blocking or asynchronous (`tracing=`), and of consumers.

    Args:
        tracer_provider: None: the process's own, as the service has configured it.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = tracer_of(tracer_provider)

    @contextmanager
    def processing(self, topic: str, headers: Iterable[Header] | None) -> Iterator[Span]:
        """Run a consumer's block in a span of the trace in which the record was sent.

        Args:
            topic: `message.topic()`.
            headers: `message.headers()`: pairs of name and bytes, or None.
        """
        headers = tuple(headers or ())
        transaction_id = (dict(headers).get(TRANSACTION_ID) or b"").decode("utf-8", "replace")
        with self._tracer.start_as_current_span(
            f"process {topic}",
            context_of(headers),
            kind=SpanKind.CONSUMER,
            attributes=attributes("process", "process", topic=topic, transaction_id=transaction_id),
        ) as span:
            yield span

    def transaction(self, shared: Shared, **arguments: Any) -> TracedTransaction:
        """Return a transaction with spans (for the producer)."""
        traced = TracedTransaction(shared, **arguments)
        traced.begin(self._tracer)
        return traced

    def local_transaction(self, transaction: Transaction, work: Local) -> Local:
        """Return `work` in a span, as `send_in_transaction` runs it (for the producer)."""

        def run(message: Message, arg: Any) -> Resolution:
            context = transaction.parent() if isinstance(transaction, TracedTransaction) else None
            name = "local transaction"
            with self._tracer.start_as_current_span(
                name, context, attributes={_TRANSACTION: transaction.id}
            ) as span:
                answer = work(message, arg)
                _set_resolution(span, answer)
                return answer

        return run

    def checker(self, checker: Checker) -> Checker:
        """Return `checker` in a span of the trace in which its message was sent."""

        @wraps(checker)
        def check(view: MessageView) -> Resolution | Answer:
            with self._check_span(view) as span:
                answer = checker(view)
                _set_resolution(span, answer)
                return answer

        return check

    def async_checker(self, checker: AsyncChecker) -> AsyncChecker:
        """Return an `async def` checker as `checker` does."""

        @wraps(checker)
        async def check(view: MessageView) -> Resolution | Answer:
            with self._check_span(view) as span:
                answer = await checker(view)
                _set_resolution(span, answer)
                return answer

        return check

    def _check_span(self, view: MessageView) -> AbstractContextManager[Span]:
        about = attributes(
            "check",
            "process",
            group=view.producer_group,
            topic=view.topic,
            transaction_id=view.transaction_id,
        )
        return self._tracer.start_as_current_span(
            f"check {view.topic}",
            context_of(view.headers),
            kind=SpanKind.CONSUMER,
            attributes=about | {_NUMBER: view.check_number},
        )


class TracedTransaction(Transaction):
    """A transaction with a span for its block, for each send, and for its decision.

    A span's parent is the current span; without one, the span that was current at `begin`; without
    that, the first send. So a transaction is one trace, whichever thread decides it.
    """

    __slots__ = ("_block", "_parent", "_tracer")

    _tracer: Tracer
    _parent: Context
    _block: Any

    def begin(self, tracer: Tracer) -> None:
        """Note the current span."""
        self._tracer = tracer
        self._parent = get_current()

    def parent(self) -> Context:
        """Return the context of the next span."""
        current = get_current()
        return current if _is_traced(current) else self._parent

    def __enter__(self) -> TracedTransaction:  # noqa: PYI034  (Self came with 3.11)
        super().__enter__()
        self._block = self._tracer.start_as_current_span(
            "transaction", self.parent(), attributes=self._about()
        )
        self._block.__enter__()
        self._parent = get_current()
        return self

    def end_block(self, error: BaseException | None) -> None:
        """End the span of the block, which ends by `error`."""
        if error is None:
            self._block.__exit__(None, None, None)
        else:
            self._block.__exit__(type(error), error, error.__traceback__)

    def _send(self, message: Message, *, pipelined: bool) -> SendFuture:
        if not isinstance(message, Message):
            return super()._send(message, pipelined=pipelined)  # refuses it
        context = self.parent()
        span = self._tracer.start_span(
            f"send {message.topic}",
            context,
            kind=SpanKind.PRODUCER,
            attributes=attributes("send", "send", topic=message.topic) | self._about(),
        )
        sent = set_span_in_context(span, context)
        if not _is_traced(context):
            self._parent = sent
        try:
            future = super()._send(_with_headers(message, sent), pipelined=pipelined)
        except BaseException as error:
            _end(span, error)
            raise
        future.add_done_callback(partial(_end_with, span))
        return future

    def _decide(self, event: Event, *, pipelined: bool) -> DecisionFuture:
        if self._decided is not None or self._decision is not None:  # a repeated call
            return super()._decide(event, pipelined=pipelined)
        name = event.name.lower()
        span = self._tracer.start_span(
            name,
            self.parent(),
            kind=SpanKind.CLIENT,
            attributes=attributes(name, "settle") | self._about(),
        )
        try:
            future = super()._decide(event, pipelined=pipelined)
        except BaseException as error:
            _end(span, error)
            raise
        future.add_done_callback(partial(_end_with, span))
        return future

    def _about(self) -> dict[str, str]:
        return {"halfbridge.producer_group": self.shared.producer_group, _TRANSACTION: self.id}


def _is_traced(context: Context) -> bool:
    return get_current_span(context).get_span_context().is_valid


def _with_headers(message: Message, context: Context) -> Message:
    """Return the message with the span's context, unless the sender has given one."""
    fields = propagate.get_global_textmap().fields
    if any(name in fields for name, _ in message.header_pairs):
        return message
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context)
    added = [(name, text.encode()) for name, text in carrier.items()]
    return replace(message, headers=(*message.header_pairs, *added)) if added else message


def _end_with(span: Span, future: SendFuture | DecisionFuture) -> None:
    _end(span, future.exception())


def _end(span: Span, error: BaseException | None) -> None:
    if error is not None:
        span.set_status(Status(StatusCode.ERROR, str(error)))
        span.set_attribute("error.type", type(error).__qualname__)
    span.end()


def _set_resolution(span: Span, answer: object) -> None:
    resolution = answer.resolution if isinstance(answer, Answer) else answer
    if isinstance(resolution, Resolution):
        span.set_attribute(_RESOLUTION, resolution.value)
