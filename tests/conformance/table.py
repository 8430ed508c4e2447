"""Who keeps which promise: our router and its peers, in one run.

    python -m conformance.table [--only ours,nginx] [--group REFUSED] [--write README.md]

Ours in all its configurations, each peer in one. Two minutes. A row that a peer misses is played
again, and the better outcome counts: its luck shall not be ours. What is missing is installed:
Debian packages (where apt-get may run), peers from PyPI.

`--write`: put totals, and rows in which the proxies differ, between the marks of a file.
Exit status 1: our router misses a row, or a proxy could not be started.
"""

import argparse
import asyncio
import re
import subprocess
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from bench.proxy import install_peers
from bench.proxy.processes import NotStartedError
from conformance.play import verdict
from conformance.promise import ALL, GENERAL, LLM, Row
from conformance.promises import GROUPS
from conformance.sites import Site, site

OURS: Final = "ours"
FOLDER: Final = install_peers.ROOT / ".build" / "conformance"
MARKS: Final = re.compile(r"(<!-- table: conformance -->\n).*?(<!-- end -->)", re.DOTALL)
MOST_OF_A_GROUP: Final = 3
KEPT, MISSED, NOT_ASKED = "✓", "✗", "–"


@dataclass
class Outcome:
    """What became of each row with one proxy: None: kept."""

    rows: dict[str, str | None] = field(default_factory=dict)
    failed: str = ""
    """Why it could not be started."""

    def mark(self, row: Row) -> str:
        """The row's cell."""
        if row.name not in self.rows:
            return NOT_ASKED
        return KEPT if self.rows[row.name] is None else MISSED

    def total(self, rows: tuple[Row, ...]) -> str:
        """How many of these it keeps, of those it was asked for."""
        marks = [self.mark(row) for row in rows]
        asked = len(marks) - marks.count(NOT_ASKED)
        return f"{marks.count(KEPT)} of {asked}" if asked else NOT_ASKED


Outcomes = dict[str, Outcome]


async def outcome(proxy: str, groups: dict[str, tuple[Row, ...]]) -> Outcome:
    """Play every row that applies."""
    result = Outcome()
    running: dict[str, Site] = {}
    async with AsyncExitStack() as stack:
        for row in (row for rows in groups.values() for row in rows):
            if proxy not in (OURS, *row.peers):
                continue
            if row.site not in running:
                try:
                    starting = site(proxy, row.site, FOLDER)
                    running[row.site] = await stack.enter_async_context(starting)
                except NotStartedError as error:
                    if row.site == "main":
                        result.failed = str(error)
                        return result
                    result.rows[row.name] = f"it does not start: {error}"
                    continue
            at = running[row.site]
            for _ in range(1 if at.is_ours else 2):
                wrong = await verdict(row, at.port, at.stage, is_ours=at.is_ours)
                if wrong is None:
                    break
            result.rows[row.name] = wrong
    return result


async def play_all(proxies: list[str], groups: dict[str, tuple[Row, ...]]) -> Outcomes:
    """Ours by itself, since it is held to the least times; then its peers, side by side."""
    outcomes: Outcomes = {}
    if OURS in proxies:
        outcomes[OURS] = await outcome(OURS, groups)
    peers = [proxy for proxy in proxies if proxy != OURS]
    done = await asyncio.gather(*(outcome(peer, groups) for peer in peers))
    return outcomes | dict(zip(peers, done, strict=True))


def printed(outcomes: Outcomes, groups: dict[str, tuple[Row, ...]]) -> str:
    """Every row, with a footnote for each that is missed."""
    names = list(outcomes)
    lines: list[str] = []
    for group, rows in groups.items():
        lines += ["", f"{group:<84}" + " ".join(f"{name:^11}" for name in names)]
        for row in rows:
            cells = " ".join(f"{outcomes[name].mark(row):^11}" for name in names)
            lines.append(f"  {row.name:<82.82}{cells}")
            for name in names:
                if wrong := outcomes[name].rows.get(row.name):
                    lines.append(f"      {name}: {wrong}")
        totals = " ".join(f"{outcomes[name].total(rows):^11}" for name in names)
        lines.append(f"  {'':<82}{totals}")
    every = tuple(row for rows in groups.values() for row in rows)
    totals = " ".join(f"{outcomes[name].total(every):^11}" for name in names)
    return "\n".join([*lines, "", f"{'all':<84}{totals}"])


def summary(outcomes: Outcomes, groups: dict[str, tuple[Row, ...]]) -> str:
    """The README's table: totals by group, then a few rows of each that several miss."""
    names = list(outcomes)
    every = tuple(row for rows in groups.values() for row in rows)
    lines = [f"| | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for group, rows in {**groups, "**all**": every}.items():
        lines.append(f"| {group} | {' | '.join(outcomes[n].total(rows) for n in names)} |")

    def misses(row: Row) -> int:
        return sum(outcomes[name].rows.get(row.name) is not None for name in names)

    telling: list[Row] = []
    for rows in groups.values():
        missed = sorted((row for row in rows if misses(row) > 1), key=misses, reverse=True)
        telling += sorted(missed[:MOST_OF_A_GROUP], key=rows.index)
    lines.append(f"| *of them, some that several miss* |{' |' * len(names)}")
    for row in telling:
        cells = " | ".join(outcomes[name].mark(row) for name in names)
        lines.append(f"| {row.name} | {cells} |")
    return "\n".join(lines) + "\n"


def measured(names: list[str]) -> str:
    """The day, and the versions."""
    said = {
        OURS: lambda: f"ullage {version('ullage')}",
        "nginx": lambda: "nginx " + _first_word_with_digits(["/usr/sbin/nginx", "-v"]),
        "haproxy": lambda: "haproxy " + _first_word_with_digits(["/usr/sbin/haproxy", "-v"]),
    }
    pins = {
        name: (lambda pin=pin: pin.replace("==", " ")) for name, pin in install_peers.PINS.items()
    }
    told = ", ".join({**said, **pins}[name]() for name in names)
    return f"{datetime.now(UTC):%Y-%m-%d}: {told}."


def _first_word_with_digits(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"\d+\.\d+\.\d+", done.stdout + done.stderr)
    return found[0] if found else "?"


def write(path: Path, text: str) -> None:
    """Replace what is between the marks. Raises `SystemExit` when they are not there."""
    whole = path.read_text(encoding="utf-8")
    if not MARKS.search(whole):
        sys.exit(f"{path}: no line <!-- table: conformance --> … <!-- end -->")
    path.write_text(MARKS.sub(lambda m: m[1] + text + m[2], whole), encoding="utf-8")


def _install(names: list[str]) -> None:
    packages = [name for name in names if name in GENERAL]
    installer = Path(__file__).resolve().parents[1] / "system_packages.py"
    if packages and subprocess.run([sys.executable, installer, *packages]).returncode != 0:
        sys.exit(1)
    try:
        install_peers.ensure([name for name in names if name in LLM])
    except install_peers.InstallError as error:
        sys.exit(str(error))


def _names(text: str) -> list[str]:
    for name in (names := text.split(",")):
        if name not in (OURS, *ALL):
            raise argparse.ArgumentTypeError(f"{name!r} is not one of ours, {', '.join(ALL)}")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=_names, default=[OURS, *ALL], metavar="NAME,NAME")
    parser.add_argument("--group", default="", help="only groups whose heading begins so")
    parser.add_argument("--write", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    groups = {g: r for g, r in GROUPS.items() if g.lower().startswith(arguments.group.lower())}
    _install(arguments.only)
    FOLDER.mkdir(parents=True, exist_ok=True)
    outcomes = asyncio.run(play_all(arguments.only, groups))
    print(printed(outcomes, groups))
    for name, each in outcomes.items():
        if each.failed:
            print(f"{name}: not started: {each.failed}", file=sys.stderr)
    if arguments.write is not None:
        text = f"Measured {measured(arguments.only)}\n\n{summary(outcomes, groups)}"
        write(arguments.write, text)
    ours = outcomes.get(OURS, Outcome())
    missed = any(wrong is not None for wrong in ours.rows.values())
    return 1 if missed or any(each.failed for each in outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
