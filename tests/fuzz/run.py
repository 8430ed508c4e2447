"""`make fuzz`: everything for a given time, then what was run; 1 and a file if something was found.

export PYTHONPATH=tests/support
python tests/fuzz/run.py [--seconds 300] [--seed N]
python tests/fuzz/run.py --replay .build/fuzz/findings/FILE     bytes that a reader was fed
python tests/fuzz/run.py --storm SEED [--connections 200]       sockets, timing permitting
python tests/fuzz/run.py --endless SEED/NUMBER                  a peer that never ends
"""

import argparse
import asyncio
import importlib.util
import logging
import re
import secrets
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import uvloop

import driver
import endless
from storm import storm

SHARES = {"guided": 0.5, "random": 0.2, "endless": 0.1, "sockets": 0.2}
"""Of the time. Without atheris, what is random gets the guided part, too."""
GUIDED = importlib.util.find_spec("atheris") is not None
_STATS = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)")
_RUNS = re.compile(r"stat::number_of_executed_units:\s*(\d+)")
_FOUND = re.compile(r"^FoundError: .*?^again: [^\n]*", re.MULTILINE | re.DOTALL)


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--replay", type=Path)
    parser.add_argument("--storm", type=int)
    parser.add_argument("--endless")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)  # The router has much to say about its peers.
    if given.replay:
        driver.replay(given.replay)
    elif given.storm is not None:
        _storm(given.storm, given.connections)
    elif given.endless:
        _one_endless(given.endless)
    else:
        return _everything(given.seconds, given.seed, given.connections)
    print("nothing was found")
    return 0


def _everything(seconds: float, seed: int | None, connections: int) -> int:
    seed = secrets.randbelow(2**31) if seed is None else seed
    print(f"seed {seed}; the same again: tests/fuzz/run.py --seed {seed}", flush=True)
    found = 0
    for name in driver.SIDES:
        found += _guided(name, seconds * SHARES["guided"] / 2, seed)
    share = SHARES["random"] + (0.0 if GUIDED else SHARES["guided"])
    for name, side in driver.SIDES.items():
        run = partial(driver.run, side, seed, seconds=seconds * share / 2)
        found += _reported(f"random {name}", run)
    found += _reported("endless", lambda: _many_endless(seconds * SHARES["endless"], seed))
    found += _reported("sockets", lambda: _storms(seconds * SHARES["sockets"], seed, connections))
    return min(found, 1)


def _guided(name: str, seconds: float, seed: int) -> int:
    if not GUIDED:
        print(f"guided {name}: atheris is not installed; random inputs only")
        return 0
    command = [sys.executable, str(Path(__file__).with_name("guided.py")), name]
    ran = subprocess.run(
        [*command, str(max(1, round(seconds))), str(seed)],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    said = ran.stdout + ran.stderr
    tries, stats = _RUNS.findall(said), _STATS.findall(said)
    line = ""
    if tries and stats:
        branches, features, corpus = stats[-1]
        line = f"{tries[-1]} inputs, {int(tries[-1]) / seconds:.0f}/s, {branches} branches, "
        line += f"{features} features, {corpus} inputs kept, "
    if ran.returncode:
        found = _FOUND.search(said)
        print(f"guided {name}: {line}FOUND {found[0] if found else said[-4000:]}", flush=True)
        return 1
    print(f"guided {name}: {line}nothing found", flush=True)
    return 0


def _many_endless(seconds: float, seed: int) -> int:
    end_s = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end_s:
        try:
            _one_endless(f"{seed}/{count}")
        except Exception as found:
            found.add_note(f"again: tests/fuzz/run.py --endless {seed}/{count}")
            raise
        count += 1
    return count


def _one_endless(name: str) -> None:
    check = endless.check_request if int(name.partition("/")[2]) % 2 else endless.check_response
    check(Random(name))


def _storms(seconds: float, seed: int, connections: int) -> int:
    end_s = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end_s:
        count += _storm(seed + count, connections)
    return count


def _storm(seed: int, connections: int) -> int:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(storm(seed, connections))


def _reported(what: str, run: Callable[[], int]) -> int:
    """Run it, and say what came of it: how many inputs, or what was found, also in a file."""
    began_s = time.monotonic()
    try:
        count = run()
    except Exception as found:  # noqa: BLE001 -- any at all is a finding
        text = "".join(traceback.format_exception(found))
        file = driver.FOLDER / "findings" / f"{what.replace(' ', '-')}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        print(f"{what}: FOUND (all of it in {file})\n{text[-4000:]}", flush=True)
        return 1
    took_s = time.monotonic() - began_s
    print(f"{what}: {count} inputs, {count / took_s:.0f}/s, nothing found", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
