"""Gateways, asked over HTTP whether they are there."""

import http.client
import json
from contextlib import closing

from holdfast.domains.agents.record import Gateway
from holdfast.kernel.holder import Liveness
from holdfast.kernel.limits import GATEWAY_PROBE_S

_ANSWER_BYTES_MAX = 4096


class GatewayHealth:
    """Asks `GET /health`, straight and without a proxy."""

    def liveness(self, gateway: Gateway) -> Liveness:
        """ALIVE when it says so in its protocol, DEAD when nothing listens there, UNKNOWN for anything else."""
        try:
            with closing(http.client.HTTPConnection(gateway.host, gateway.port, timeout=GATEWAY_PROBE_S)) as connection:
                connection.request("GET", "/health")
                answer = connection.getresponse()
                said = json.loads(answer.read(_ANSWER_BYTES_MAX))
        except ConnectionRefusedError:
            return Liveness.DEAD
        except (OSError, http.client.HTTPException, ValueError, RecursionError):
            # A host that is no host's name raises here too.
            return Liveness.UNKNOWN
        same = isinstance(said, dict) and said.get("protocol_version") == gateway.protocol_version
        return Liveness.ALIVE if same and answer.status == http.client.OK else Liveness.UNKNOWN
