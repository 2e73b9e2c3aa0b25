"""Whether operators let new transactions begin, as one producer knows it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from halfbridge.kafka.errors import TopicSetupError, TransactionsRejectedError
from halfbridge.kafka.trouble import tell
from halfbridge.logs import one_line
from halfbridge.serde.topic_types import TopicType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from halfbridge.kafka.ports import Concurrency
    from halfbridge.kafka.settings_topic import Switched

_LOG = logging.getLogger("halfbridge.bridge")
# How long the first `begin` of a producer waits for the first look at the settings topic: a
# producer that is started while operators reject begins nothing. A look takes some 50 ms.
FIRST_LOOK_S = 1.0


class Gate:
    """Refuses what operators reject. Thread-safe.

    Args:
        run: Makes the flag that the first `begin` waits for.

    Attributes:
        refusal: Why nothing may be sent now, or None: what is open is decided all the same.
        plain: Real topics to which transactions do not deliver.
    """

    def __init__(self, run: Concurrency) -> None:
        self.refusal: TransactionsRejectedError | None = None
        self.plain: frozenset[str] = frozenset()
        self._has_looked = run.event()
        self._is_waited_for = True

    def check_begin(self, topics: Iterable[str]) -> None:
        """Check that a transaction may begin; the first call waits for the first look.

        Args:
            topics: To which the producer is bound.

        Raises:
            TransactionsRejectedError: an operator stopped new transactions; nothing was begun.
            TopicSetupError: a topic takes no transactional messages.
        """
        if self._is_waited_for:
            self._has_looked.wait(FIRST_LOOK_S)
            self._is_waited_for = False
        self.check_send()
        if self.plain:
            for topic in topics:
                self.check_topic(topic)

    def check_send(self) -> None:
        """Check that a half message may be sent.

        Raises:
            TransactionsRejectedError: an operator stopped new transactions; nothing was sent.
        """
        refusal = self.refusal
        if refusal is not None:  # a new error for each raise: tracebacks grow on a shared one
            raise TransactionsRejectedError(str(refusal), reason=refusal.reason)

    def check_topic(self, topic: str) -> None:
        """Check that transactions deliver to a real topic.

        Raises:
            TopicSetupError: an operator made the topic a plain one; nothing was sent.
        """
        if topic in self.plain:
            raise TopicSetupError(
                f"topic {topic} is plain, so that transactions do not deliver to it: send to"
                f" another, or run: halfbridge topics create {topic} --type transaction",
                topics=(topic,),
            )

    def looked(self) -> None:
        """Note that the settings topic was looked at, or could not be."""
        self._has_looked.set()

    def take_types(self, types: Mapping[str, TopicType | None], *, is_whole: bool) -> None:
        """Take the types that were read; `is_whole`: these are all, and others are none."""
        known = frozenset() if is_whole else self.plain.difference(types)
        self.plain = known.union(topic for topic, kind in types.items() if kind is TopicType.PLAIN)

    def take(self, switched: Switched | None) -> None:
        """Take the last record of the switch; None: there is none, so that nobody rejects."""
        switch = None if switched is None else switched.switch
        if switched is not None and switched.problem:
            tell(
                _LOG.warning,
                "the operators' switch at offset %d cannot be read (%s): transactions are begun",
                switched.offset,
                switched.problem,
            )
        if switch is None or not switch.is_rejecting:
            if self.refusal is not None:
                tell(_LOG.info, "operators accept new transactions again")
            self.refusal = None
            return
        reason = one_line(switch.reason)
        text = f"{one_line(switch.who)} stopped new transactions: {reason}"
        if self.refusal is None or str(self.refusal) != text:
            tell(_LOG.warning, "%s; what is open may still be decided", text)
        self.refusal = TransactionsRejectedError(text, reason=reason)
