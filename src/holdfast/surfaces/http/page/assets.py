"""The files of the page, and what a browser may do with them: nothing but what is served here."""

from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from holdfast.kernel.text import UNFIT

_KINDS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
"""The framework adds that text is UTF-8."""

_BEGIN = b'<script type="module" src="/assets/begin.js"></script>'
"""Replaced by the script itself: what loads the rest must not be lost on the way."""

_UNFIT = b"/(?!)/gu"
"""In text.js, replaced by the pattern of the characters that are written out."""


class Asset(NamedTuple):
    """One file, as it is sent."""

    content: bytes
    media_type: str
    etag: str


def load_assets() -> dict[str, Asset]:
    """Every file of the page by its name.

    Only what is found here is ever served, so that no name becomes a path.
    """
    files = {
        path.name: path
        for path in (Path(__file__).parent / "assets").iterdir()
        if path.suffix in _KINDS
    }
    contents = {name: path.read_bytes() for name, path in files.items()}
    begin = b'<script type="module">%b</script>' % contents["begin.js"]
    contents["page.html"] = contents["page.html"].replace(_BEGIN, begin)
    contents["text.js"] = contents["text.js"].replace(_UNFIT, _in_javascript(UNFIT).encode())
    return {name: _asset(files[name].suffix, content) for name, content in contents.items()}


def headers_of(assets: dict[str, Asset]) -> dict[str, str]:
    """The headers of every file of the page: only scripts of this server may run, and the one in
    the page's own text.
    """
    begin = b64encode(sha256(assets["begin.js"].content).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'self' 'sha256-{begin}'; style-src 'self'; img-src "
        "'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for "
        "'script'; trusted-types 'none'"
    )
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-cache",
    }


def _in_javascript(pattern: str) -> str:
    """The same regular expression in JavaScript, in ASCII alone."""
    named = pattern.replace("(?P<", "(?<")
    escaped = "".join(c if " " <= c <= "~" else f"\\u{{{ord(c):x}}}" for c in named)
    return f"/{escaped}/gu"


def _asset(suffix: str, content: bytes) -> Asset:
    return Asset(content, _KINDS[suffix], f'"{sha256(content).hexdigest()[:16]}"')
