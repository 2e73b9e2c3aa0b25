"""A broker with one more listener, for clients that come by another way than the tests do."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from halfbridge.testkit.broker import EmbeddedBroker
from halfbridge.testkit.ports import HOST, free_ports
from tests.faults.scene import PATIENT

_NAME = "OTHER"
_NODE = 1


@dataclass(frozen=True, slots=True)
class Listener:
    """Where clients find a broker besides its own address.

    Attributes:
        port: It listens there.
        broker_port: Of the listener that the tests use.
        controller_port: Of the controller.
        host: The address that clients connect to.
        protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
    """

    port: int
    broker_port: int
    controller_port: int
    host: str = HOST
    protocol: str = "PLAINTEXT"

    @property
    def servers(self) -> str:
        """Return the bootstrap servers of its clients."""
        return f"{self.host}:{self.port}"

    def bound(self, address: str) -> str:
        return f"{_NAME}://{address}:{self.port}"

    def broker(
        self,
        directory: Path,
        properties: Mapping[str, str] | None = None,
        server: Mapping[str, str] | None = None,
    ) -> EmbeddedBroker:
        """Return a broker that has it, not started; `properties` get the listener's prefix.

        `server` are properties of the broker itself.
        """
        plain = f"PLAINTEXT://{HOST}:{self.broker_port}"
        prefix = f"listener.name.{_NAME.lower()}."
        return EmbeddedBroker(
            directory,
            self.broker_port,
            {
                **PATIENT,
                "controller.quorum.voters": f"{_NODE}@{HOST}:{self.controller_port}",
                "listeners": f"{plain},CONTROLLER://{HOST}:{self.controller_port},"
                + self.bound(HOST),
                "advertised.listeners": f"{plain},{_NAME}://{self.servers}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
                f"{_NAME}:{self.protocol}",
                **{prefix + name: value for name, value in (properties or {}).items()},
                **(server or {}),
            },
        )


def listener(host: str = HOST, protocol: str = "PLAINTEXT") -> Listener:
    """Return a listener on free ports."""
    return Listener(*free_ports(3), host=host, protocol=protocol)
