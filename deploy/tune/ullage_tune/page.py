"""The report as one HTML page that needs nothing but itself.

Rule: no script, no font, no image from elsewhere; figures are inline SVG in the page's own ink, so
that they are as readable in the dark. Whatever comes from outside (names, settings) is escaped.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

from ullage_tune.measure import Slo
from ullage_tune.sheets import Sheet, Tone

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1a1b1c; --paper: #fff; --pale: #5f6368; --rule: #d9dce0;
  --head: #f4f5f7; --best: #05603a; --unsure: #8a5300; --missed: #b3261e }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e7e9; --paper: #16181b; --pale: #a4a9b0;
  --rule: #363a40; --head: #1f2226; --best: #6fd3a0; --unsure: #f0b45a; --missed: #ff8a80 } }
body { background: var(--paper); color: var(--ink); margin: 0 auto; padding: 1.5rem;
  max-width: 76rem; font: 16px/1.5 system-ui, "DejaVu Sans", sans-serif }
h1, h2, h3 { line-height: 1.2; margin: 2.2rem 0 .6rem } h1 { margin-top: 0 }
h2 { border-bottom: 1px solid var(--rule); padding-bottom: .3rem }
a { color: inherit } nav li { display: inline-block; margin-right: 1.2rem } nav ul { padding: 0 }
.note, figcaption { color: var(--pale); font-size: .9rem; max-width: 50rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--rule); text-align: right;
  vertical-align: top }
.wide table { min-width: 58rem } dl { max-width: 50rem }
th:first-child, td:first-child { text-align: left }
thead th { background: var(--head); font-weight: 600; vertical-align: bottom }
tbody th { font-weight: 500; white-space: nowrap }
.best { color: var(--best); font-weight: 600 } .unsure { color: var(--unsure); font-weight: 600 }
.missed { color: var(--missed); font-weight: 700 }
figure { margin: 1.2rem 0 }
figure svg { width: 100%; max-width: 50rem; height: auto; overflow: visible }
dt { font-weight: 600 } dd { margin: 0 0 .5rem }
""".strip()

_CLASSES: Final = {
    Tone.PLAIN: "",
    Tone.BEST: ' class="best"',
    Tone.UNSURE: ' class="unsure"',
    Tone.MISSED: ' class="missed"',
}


class Drawing(NamedTuple):
    """A figure, and what it shows."""

    svg: str
    words: str
    """A sentence."""


class Section(NamedTuple):
    """A part of the page, or of a part."""

    title: str
    sheets: Sequence[Sheet] = ()
    drawings: Sequence[Drawing] = ()
    parts: Sequence["Section"] = ()


def page(
    title: str, lead: str, facts: Mapping[str, str], slo: Slo, sections: Sequence[Section]
) -> str:
    """The document. `facts` are what was run, and with what; `lead` is what came of it."""
    entries = "".join(
        f'<li><a href="#s{i}">{escape(section.title)}</a></li>'
        for i, section in enumerate(sections)
    )
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(lead)}</p>",
        f'<nav><ul>{entries}<li><a href="#run">What was run</a></li>'
        '<li><a href="#words">What the words mean</a></li></ul></nav>',
    ]
    for i, section in enumerate(sections):
        body.append(f'<section id="s{i}"><h2>{escape(section.title)}</h2>')
        body += _contents(section)
        body += [
            line
            for part in section.parts
            for line in (f"<h3>{escape(part.title)}</h3>", *_contents(part))
        ]
        body.append("</section>")
    body += _list("run", "What was run", facts)
    body += _list("words", "What the words mean", _words(slo))
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{_STYLE}\n</style></head><body>",
            *body,
            "</body></html>\n",
        )
    )


def _contents(section: Section) -> Iterable[str]:
    for sheet in section.sheets:
        yield from _table(sheet)
    for svg, words in section.drawings:
        labelled = svg.replace("<svg", f'<svg role="img" aria-label="{escape(words)}"', 1)
        yield f"<figure>{labelled}<figcaption>{escape(words)}</figcaption></figure>"


def _table(sheet: Sheet) -> Iterable[str]:
    heads = "".join(f'<th scope="col">{escape(column)}</th>' for column in sheet.columns)
    yield f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>'
    for first, *others in sheet.rows:
        cells = "".join(f"<td{_CLASSES[f.tone]}>{escape(str(f))}</td>" for f in others)
        yield f'<tr><th scope="row"{_CLASSES[first.tone]}>{escape(str(first))}</th>{cells}</tr>'
    yield f'</tbody></table></div><p class="note">{escape(sheet.note)}</p>'


def _words(slo: Slo) -> Mapping[str, str]:
    return {
        "TTFT": "Time to the first token, from the request's arrival at the router.",
        "TPOT": "Time per output token behind the first.",
        "E2E": "From the arrival to the last token.",
        "p50, p90, p99": "The least value that 50, 90, 99 % of the requests do not exceed. One that"
        " was refused, or failed, counts as infinitely late: never.",
        "goodput": f"Share of all requests with TTFT ≤ {slo.ttft_s:g} s and TPOT ≤"
        f" {slo.tpot_s:g} s. One that was refused, or failed, is not good.",
        "prefix hits": "Share of the prompts' tokens that were in a replica's KV cache.",
        "imbalance": "The busiest replica's computing time ÷ their mean: 1 is even.",
        "load": "Work offered ÷ what all replicas together can do.",
        "omniscient": "Knows all backlogs, caches, and lengths of answers: a bound, no rival.",
    }


def _list(key: str, title: str, entries: Mapping[str, str]) -> Iterable[str]:
    yield f'<section id="{key}"><h2>{escape(title)}</h2><dl>'
    yield from (f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in entries.items())
    yield "</dl></section>"
