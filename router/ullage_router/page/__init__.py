"""`/`: the status page, one self-contained document made of the files beside this one.

Rules
* It loads nothing, and asks nobody but `status` beside it. The header that says so lets no other
  script or style in, whatever a replica calls itself: what the page shows, it shows as text.
* Its files are read once, at import: a package that lacks one does not start.
"""

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import Final

from aiohttp import web

_SCRIPTS: Final = ("history", "words", "draw", "columns", "detail", "fleet", "aside", "main")
"""In this order, one module."""


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


_STYLE: Final = _read("page.css")
_SCRIPT: Final = "\n".join(_read(f"{name}.js") for name in _SCRIPTS)
DOCUMENT: Final = (
    _read("page.html").replace("/* style */", _STYLE).replace("/* script */", _SCRIPT).encode()
)
HEADERS: Final = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src {_digest(_SCRIPT)}; style-src {_digest(_STYLE)}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


async def html_page(_: web.Request) -> web.Response:
    """The page."""
    return web.Response(body=DOCUMENT, content_type="text/html", charset="utf-8", headers=HEADERS)
