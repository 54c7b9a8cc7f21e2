"""Spaces that lie in files in each of the ways there are, and steps for tests of the files
store.
"""

import json
from pathlib import Path
from typing import Any

import msgspec

from holdfast.kernel.codec import Record, to_plain
from holdfast.kernel.layout import Document, FilePerRecord, OneFile, Sign, Wire
from holdfast.kernel.space import Space
from holdfast.kernel.store import Store, Tx
from holdfast.stores.files.store import FilesStore
from holdfast.testing.clock import ManualClock


class Host(Record, frozen=True, kw_only=True):
    ip: str
    more: dict[str, Any] = msgspec.field(default_factory=dict)


def _write(host: Host) -> Document:
    return {**host.more, "ip": host.ip}


def _read(_: str, document: Document) -> Host:
    return msgspec.convert(
        {"ip": document["ip"], "more": {k: v for k, v in document.items() if k != "ip"}}, Host
    )


WIRE = Wire(_write, _read)


def _spread(value: list[Document]) -> list[tuple[str, Document]]:
    return [
        (document["name"], {k: v for k, v in document.items() if k != "name"}) for document in value
    ]


def _gather(documents: Any) -> list[Document]:
    return [{"name": key, **document} for key, document in documents.items()]


HOSTS = Space(
    "t_hosts",
    Host,
    indexes={"ip": lambda host: (host.ip,)},
    layout=OneFile("lab", "hosts.json", WIRE),
)
LEASES = Space(
    "t_leases",
    Host,
    layout=OneFile("lab", "leases.json", WIRE, part="leases", spread=_spread, gather=_gather),
)
CARDS = Space(
    "t_cards",
    Host,
    indexes={"ip": lambda host: (host.ip,)},
    layout=FilePerRecord("cards", "{key}.json", WIRE),
)
DEEP = Space("t_deep", Host, layout=FilePerRecord("lab", "live/{key}/record.json", WIRE))
HIDDEN = Space("t_hidden", Host)
LOCKED = Space("t_locked", Host, volatile=True)
ALL = [HOSTS, LEASES, CARDS, DEEP, HIDDEN]
LAID = [HOSTS, LEASES, CARDS, DEEP]
SIGN: Sign[Host] = Sign(
    "lab",
    "locks/router_{key}",
    lambda host: None if host.ip == "free" else to_plain(host.more | {"ip": host.ip}),
)


def open_files(root: Path, **how: Any) -> FilesStore:
    return FilesStore(
        root, **{"boot_id": "boot-1", "clock": ManualClock(), "retry_delay_s": 0.001, **how}
    )


def put(store: Store, space: Space[Host], key: str, ip: str = "1", **more: Any) -> int:
    def body(tx: Tx) -> int:
        tx.put(space, key, Host(ip=ip, more=more))
        return tx.revision

    return store.transact(body, scope=[space])


def keys(store: Store, space: Space[Host]) -> list[str]:
    return store.read(lambda tx: [row.key for row in tx.range(space)], scope=[space])


def shown(path: Path) -> Any:
    return json.loads(path.read_text())
