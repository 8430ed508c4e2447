"""The status page as it is served: whole, alone, and let nothing else in. (Drawn: another file.)"""

import hashlib
import re
from base64 import b64encode
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from ullage_router.page import DOCUMENT, HEADERS

ROOT = Path(__file__).parents[2]
TEXT = DOCUMENT.decode()
POLICY = dict(each.split(" ", 1) for each in HEADERS["Content-Security-Policy"].split("; "))


@pytest.mark.parametrize(("directive", "tag"), [("script-src", "script"), ("style-src", "style")])
def test_only_the_pages_own_script_and_style_may_run(directive: str, tag: str) -> None:
    (own,) = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", TEXT, re.DOTALL)
    digest = b64encode(hashlib.sha256(own.encode()).digest()).decode()
    assert POLICY[directive] == f"'sha256-{digest}'"


def test_nothing_is_loaded_and_nobody_may_frame_it() -> None:
    assert POLICY["default-src"] == POLICY["base-uri"] == POLICY["form-action"] == "'none'"
    assert POLICY["frame-ancestors"] == "'none'"
    assert POLICY["connect-src"] == "'self'"
    links = set(re.findall(r"\b(?:src|href)=(\S*?)[\s>]", TEXT))
    pages = {"replicas", "decisions", "status", "healthz", "metrics"}
    assert links == {'"data:,"'} | {f'"{page}"' for page in pages}  # Whatever stands before them.
    assert not re.findall(r"https?://|@import|url\(", TEXT)


def test_no_text_becomes_markup_and_no_markup_has_handlers() -> None:
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", TEXT)
    markup = re.sub(r"<(script|style).*?</\1>", "", TEXT, flags=re.DOTALL)
    assert not re.findall(r"\son\w+=|\sstyle=", markup)


def test_the_wheel_brings_every_file_of_the_page() -> None:
    brought = {f.distribution_path for f in WheelBuilder(str(ROOT)).recurse_included_files()}
    folder = ROOT / "router" / "ullage_router" / "page"
    wanted = {f"ullage_router/page/{file.name}" for file in folder.iterdir() if file.is_file()}
    assert {f"ullage_router/page/{name}" for name in ("page.html", "page.css", "main.js")} < wanted
    assert wanted <= brought
