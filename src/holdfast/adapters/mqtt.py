"""Message brokers, by paho-mqtt 2: sending with an acknowledgement, and listening through outages.

Promised: no call takes longer than its time limit; no password is logged or shown. Not promised:
that a message without an acknowledgement did not arrive.
"""

import os
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.domains.jobs.broker_address import BrokerAddress
from holdfast.kernel.errors import BrokerUnavailable, InvalidValue
from holdfast.kernel.limits import BROKER_BACKOFF_MAX_S, BROKER_CONNECT_S
from holdfast.kernel.text import installing

if TYPE_CHECKING:
    import paho.mqtt.client as paho

_KEEP_ALIVE_S = 20
_CLOSING_S = 0.5
_QOS = 1


class Message(NamedTuple):
    topic: str
    payload: bytes


class Publisher:
    """A connection to send by. Making one raises BrokerUnavailable when there is no broker, or it
    refuses.
    """

    def __init__(self, address: BrokerAddress, *, timeout_s: float = BROKER_CONNECT_S) -> None:
        self._reach = address
        self._timeout_s = timeout_s
        self._answered = threading.Event()
        self._refused = ""
        self._client = _client(address, timeout_s)
        self._client.on_connect = self._connected
        try:
            self._client.connect(address.host, address.port, _KEEP_ALIVE_S)
        except (OSError, ValueError) as error:
            raise _unavailable(address, _words(error)) from None
        self._client.loop_start()
        if not self._answered.wait(timeout_s) or self._refused:
            self.close()
            raise _unavailable(address, self._refused or f"it said nothing for {timeout_s:g} s")

    def send(self, topic: str, payload: bytes) -> None:
        """Send one message and return once the broker has it. Raises BrokerUnavailable when it did
        not acknowledge in time, and InvalidValue for a topic that nothing can be sent to.
        """
        try:
            message = self._client.publish(topic, payload, qos=_QOS)
        except ValueError as error:
            raise InvalidValue(
                f"nothing can be sent to the topic {ascii(topic)[:80]}: {error}",
                field="topic_prefix",
            ) from None
        try:
            message.wait_for_publish(self._timeout_s)
            acknowledged = message.is_published()
        except (ValueError, RuntimeError):
            raise _unavailable(self._reach, "the connection is gone") from None
        if not acknowledged:
            raise _unavailable(self._reach, f"it acknowledged nothing for {self._timeout_s:g} s")

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _connected(
        self, _client: Any, _data: Any, _flags: Any, reason: Any, _properties: Any
    ) -> None:
        self._refused = f"it refuses: {reason}" if reason.is_failure else ""
        self._answered.set()


class Subscriber:
    """Listens to topics from now on, through outages: it connects again, with longer and longer
    pauses, and subscribes again.

    What was sent during an outage does not arrive afterwards. So the caller looks at the registry
    when `fd` becomes readable: for every message, and when the connection came or went. Never
    raises for a broker that is away.
    """

    def __init__(
        self, address: BrokerAddress, topics: Sequence[str], *, timeout_s: float = BROKER_CONNECT_S
    ) -> None:
        self.address = address
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.connected = False
        self.trouble = ""
        """Why it is not connected, in words."""
        self._topics = list(topics)
        self._asked: set[str] = set()
        self._mutex = threading.Lock()
        self._messages: deque[Message] = deque()
        self._closing = threading.Event()
        self._client = _client(address, timeout_s)
        self._client.reconnect_delay_set(1, int(BROKER_BACKOFF_MAX_S))
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_disconnect = self._on_disconnect
        self._client.on_message = self._on_message
        self._thread = threading.Thread(target=self._run, name="holdfast-mqtt", daemon=True)
        self._thread.start()

    def add(self, topics: Sequence[str]) -> None:
        self._topics += [topic for topic in topics if topic not in self._topics]
        if self.connected:
            self._ask()

    def take(self) -> list[Message]:
        """The messages since the last call; clears `fd`."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        return [self._messages.popleft() for _ in range(len(self._messages))]

    def close(self) -> None:
        """Stop listening. Does not wait for a broker that does not answer."""
        self._closing.set()
        self._client.disconnect()
        self._thread.join(_CLOSING_S)

    def _run(self) -> None:
        """Connect until it works; then the library keeps the connection."""
        pause_s = 0.5
        while not self._closing.is_set():
            try:
                self._client.connect(self.address.host, self.address.port, _KEEP_ALIVE_S)
            except (OSError, ValueError) as error:
                self._report(_words(error))
            else:
                self._client.loop_forever(retry_first_connection=False)
            self._closing.wait(pause_s)
            pause_s = min(2 * pause_s, BROKER_BACKOFF_MAX_S)
        # By the thread that writes to it: it may still be connecting when `close` returns.
        os.close(self.fd)

    def _on_connect(
        self, _client: Any, _data: Any, _flags: Any, reason: Any, _properties: Any
    ) -> None:
        if self._closing.is_set():
            # `close` came while it was connecting, when there was nothing to disconnect yet.
            self._client.disconnect()
        elif reason.is_failure:
            self._report(f"it refuses: {reason}")
        else:
            self._asked.clear()
            self._ask()

    def _on_subscribe(
        self, _client: Any, _data: Any, _mid: Any, reasons: Any, _properties: Any
    ) -> None:
        refused = [reason for reason in reasons if reason.is_failure]
        self.connected = not refused
        self._report(f"it refuses a topic: {refused[0]}" if refused else "")
        # Topics may have been added since the request was sent.
        self._ask()

    def _ask(self) -> None:
        """Subscribe to the topics that this connection has not asked for."""
        with self._mutex:
            new = [topic for topic in self._topics if topic not in self._asked]
            self._asked.update(new)
        if new:
            self._client.subscribe([(topic, _QOS) for topic in new])

    def _on_disconnect(
        self, _client: Any, _data: Any, _flags: Any, reason: Any, _properties: Any
    ) -> None:
        if self.connected:
            self.connected = False
            self._report(f"the connection is gone: {reason}")

    def _on_message(self, _client: Any, _data: Any, message: Any) -> None:
        self._messages.append(Message(message.topic, message.payload))
        self._wake()

    def _report(self, trouble: str) -> None:
        self.trouble = trouble
        self._wake()

    def _wake(self) -> None:
        if not self._closing.is_set():
            os.eventfd_write(self.fd, 1)


def _client(address: BrokerAddress, timeout_s: float) -> "paho.Client":
    """A client that is not connected yet."""
    try:
        import paho.mqtt.client as paho
        from paho.mqtt.enums import CallbackAPIVersion
    except ImportError:
        raise BrokerUnavailable(
            f"the library for message brokers is not installed: {installing('mqtt')}",
            outcome="none",
        ) from None
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.connect_timeout = timeout_s
    if address.username is not None:
        client.username_pw_set(address.username, address.password)
    if address.tls:
        try:
            client.tls_set(
                ca_certs=address.ca_certs, certfile=address.certfile, keyfile=address.keyfile
            )
        except (OSError, ValueError) as error:
            raise _unavailable(
                address, f"its certificates cannot be used: {_words(error)}"
            ) from None
    return client


def _unavailable(address: BrokerAddress, why: str) -> BrokerUnavailable:
    return BrokerUnavailable(
        f"the message broker {address.shown} cannot be used ({why}): start it, or set MQTT_BROKER "
        "and MQTT_PORT to another",
        broker=address.shown,
        outcome="none",
    )


def _words(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
