"""Kafka nodes with a proxy between them and their clients."""

from halfbridge.testkit.broker import BrokerStartError, EmbeddedCluster
from halfbridge.testkit.properties import NodeAddress
from tests.kit.proxy import KafkaProxy, ProxyError, Route


class ProxiedCluster(EmbeddedCluster):
    """Clients that use `proxied_servers` pass the proxy; those of `bootstrap_servers` do not."""

    _PORTS_A_NODE = 4
    _proxy: KafkaProxy | None = None

    @property
    def proxied_servers(self) -> str:
        """Return the addresses of all nodes as clients of the proxy see them."""
        return ",".join(node.address.proxied for node in self._running().values())

    @property
    def proxy(self) -> KafkaProxy:
        """Return the proxy, to turn faults on and off.

        Raises:
            RuntimeError: not started.
        """
        if self._proxy is None:
            raise RuntimeError("no proxy: start the cluster")
        return self._proxy

    def stop(self) -> None:
        """End the proxy and every node. Idempotent."""
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None
        super().stop()

    def _put_in_front(self, addresses: tuple[NodeAddress, ...]) -> None:
        self._proxy = KafkaProxy(
            Route(each.node_id, each.proxy_port, each.client_port) for each in addresses
        )
        try:
            self._proxy.start()
        except ProxyError as error:
            raise BrokerStartError(str(error)) from error
