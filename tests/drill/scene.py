"""An operator's drill in memory: an incident, the alert that fires, what doctor says, the mend."""

import re
from typing import Any

from halfbridge import Message, MessageView, Resolution
from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.doctor.facts import Finding
from halfbridge.checker.status import Health, Status
from halfbridge.testkit.memory import MemoryStack
from halfbridge.testkit.memory.programs import MemoryProducer
from tests.deploy.promql import rules
from tests.unit.checker.admin.doctor.scene import found_by

GROUP = "order-service"
TOPIC = "orders"


def unknown(_: MessageView) -> Resolution:
    """Answer as a checker that never knows."""
    return Resolution.UNKNOWN


class Drill:
    """An installation with a real topic, and what an operator sees of it."""

    def __init__(self, stack: MemoryStack) -> None:
        self.stack = stack
        self.broker = stack.machine.broker
        self.names = stack.config.names

    def send(
        self, producer: MemoryProducer, value: bytes, topic: str = TOPIC, *, wait: bool = False
    ) -> str:
        """Commit a transaction of one message; return its id."""
        with producer.begin() as tx:
            tx.send(Message(topic, key=b"k", value=value))
            tx.commit(wait=wait)
        return tx.id

    def values(self, topic: str = TOPIC) -> list[bytes | None]:
        """Return what consumers see."""
        return [each.value for each in self.stack.read_committed(topic)]

    @property
    def health(self) -> Health:
        """What /healthz of the worker says."""
        return self._status.snapshot()

    def doctor(self, **request: Any) -> dict[str, Finding]:
        """Return what `halfbridge doctor` finds, by code."""
        return found_by(self.stack, **{"real_topics": (TOPIC,), **request})

    def cluster(self) -> Cluster:
        """Return what the operator's commands use."""
        ports = self.stack.machine.ports(self.stack.machine.process("operator"))
        return Cluster(self.stack.bootstrap_servers, ports=ports)

    def metric(self, alert: str, **labels: str) -> float:
        """Return the sum of the first metric that an alert is about; 0: no sample.

        Metrics of all workers of a test's process are added up, so counters are compared with what
        they were before.
        """
        (rule,) = (each for each in rules() if each.get("alert") == alert)
        name = re.findall(r"\bhalfbridge_\w+", rule["expr"])[0]
        return sum(
            sample.value
            for family in self._status.metrics.registry.collect()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    @property
    def _status(self) -> Status:
        (worker,) = self.stack.daemon._workers
        return worker.status
