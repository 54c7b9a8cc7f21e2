"""The files of the page, and what a browser may do with them: nothing but what is served here."""

from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from holdfast.kernel.errors import NotFound

_KINDS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
"""What each is called. Text is said to be UTF-8 by the framework."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
"""With every file of the page."""


class Asset(NamedTuple):
    """One file, as it is sent."""

    content: bytes
    media_type: str
    etag: str


def load_assets() -> dict[str, Asset]:
    """Every file of the page by its name. Only what is found here is ever served, so that no name becomes a path."""
    return {path.name: _asset(path) for path in (Path(__file__).parent / "assets").iterdir() if path.suffix in _KINDS}


def asset_named(assets: dict[str, Asset], name: str) -> Asset:
    """One of them. Raises NotFound."""
    if name not in assets:
        raise NotFound("the page has no such file", name=name[:100])
    return assets[name]


def _asset(path: Path) -> Asset:
    content = path.read_bytes()
    return Asset(content, _KINDS[path.suffix], f'"{sha256(content).hexdigest()[:16]}"')
