"""The bearer token: made on first use, in a file that only its owner reads, and compared in
constant time.
"""

import contextlib
import hmac
import os
import re
import secrets
from pathlib import Path

from holdfast.adapters.durable_write import make_whole
from holdfast.kernel.errors import StoreUnavailable
from holdfast.system.access import in_folder, make_private_folder, open_file

_BYTES = 32
_TOKEN = re.compile(r"[A-Za-z0-9_-]{20,200}\Z")


def bearer_token(path: Path) -> str:
    """The token in a file, which is made if it is not there.

    Raises StoreUnavailable when it cannot be made or trusted.
    """
    try:
        with contextlib.suppress(FileExistsError):
            make_private_folder(path.parent)
            # Others may make it at once, and the first one wins.
            token = secrets.token_urlsafe(_BYTES).encode() + b"\n"
            in_folder(
                path, lambda folder, name: make_whole(name, token, folder_fd=folder), private=True
            )
        return read_token(path)
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from None


def read_token(path: Path) -> str:
    """The token in a file that is there.

    Raises StoreUnavailable when others can read it, or it is none, and OSError.
    """
    fd = open_file(path, os.O_RDONLY, make=False, private=True)
    with open(fd, encoding="ascii", errors="replace") as file:
        if os.fstat(fd).st_mode & 0o077:
            raise _unusable(path, "others may read it: chmod 600, or delete it for a new one")
        token = file.read(512).strip()
    if not _TOKEN.match(token):
        raise _unusable(path, "it holds no token: delete it for a new one")
    return token


def shown_token(authorization: str) -> str:
    """What the value of an Authorization header shows as bearer token; empty when it shows none."""
    scheme, _, given = authorization.partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""


def same_token(given: str, token: str) -> bool:
    """Are these the same? Takes as long whatever they share."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


def _unusable(path: Path, why: str) -> StoreUnavailable:
    return StoreUnavailable(f"the token file {path} cannot be used: {why}", outcome="none")
