"""Probes the gateways of agents."""

import json
from contextlib import closing

from holdfast.domains.agents.records import GatewayAddress
from holdfast.kernel.holder import Liveness
from holdfast.kernel.limits import GATEWAY_PROBE_S

_HEALTH_BYTES_MAX = 4096


class GatewayHealth:
    """Probes gateways by `GET /health`, as the port `Gateways` says: ALIVE when a gateway of that
    protocol answers.
    """

    def liveness(self, gateway: GatewayAddress) -> Liveness:
        # Loaded here: with `ssl` and `email` below it takes 10 ms, and few commands probe.
        import http.client

        try:
            connection = http.client.HTTPConnection(
                gateway.host, gateway.port, timeout=GATEWAY_PROBE_S
            )
            with closing(connection):
                connection.request("GET", "/health")
                answer = connection.getresponse()
                said = json.loads(answer.read(_HEALTH_BYTES_MAX))
        except ConnectionRefusedError:
            return Liveness.DEAD
        except (OSError, http.client.HTTPException, ValueError, RecursionError):
            # Also for a text that is no host's name.
            return Liveness.UNKNOWN
        same = isinstance(said, dict) and said.get("protocol_version") == gateway.protocol_version
        return Liveness.ALIVE if same and answer.status == http.client.OK else Liveness.UNKNOWN
