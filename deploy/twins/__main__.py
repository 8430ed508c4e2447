"""Live twins on this machine, until Ctrl-C: `python -m twins --venv VENV --model DIR`.

Ready, each says where it answers, how long its start took and what memory it holds; at the end, how
it kept up: where seconds were lost, this machine was too busy for so many.
"""

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from twins.fleet import Fleet, Twin
from ullage_tune.engine_file import EngineError, engine_of
from ullage_tune.gpu import ENGINES
from vllm_cpu.serve import ServerError


def main() -> int:
    """Entry point; the exit status."""
    flags = argparse.ArgumentParser(
        prog="twins", description="vLLM's own servers, each at the pace of a modelled GPU"
    )
    flags.add_argument("--venv", type=Path, required=True, help="of vLLM, with ullage in it")
    flags.add_argument("--model", type=Path, required=True)
    flags.add_argument("--count", type=int, default=4, metavar="N", help="[%(default)s]")
    flags.add_argument(
        "--engine",
        default="spike",
        metavar="NAME|FILE",
        help=f"{', '.join(ENGINES)}, or a file as `ullage-tune fit` writes it [%(default)s]",
    )
    flags.add_argument("--port-base", type=int, default=8001, metavar="PORT", help="[%(default)s]")
    asked = flags.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):  # SIGINT is ignored behind a script's `&`.
        signal.signal(number, signal.default_int_handler)
    try:
        engine = engine_of(asked.engine)
    except EngineError as error:
        flags.error(f"--engine {error}")
    folder = Path(tempfile.mkdtemp(prefix="ullage-twins-"))
    print(f"logs, and the socket for a sidecar (readings.sock): {folder}", flush=True)
    fleet = Fleet(
        asked.count,
        engine,
        venv=asked.venv,
        model=asked.model,
        port_base=asked.port_base,
        folder=folder,
        on_ready=_say_ready,
    )
    try:
        with fleet:
            _until_one_ends(fleet)
    except ServerError as error:
        print(f"twins: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        for twin in fleet.twins:
            _say_pace(twin)
    return 0


def _say_ready(twin: Twin, took_s: float) -> None:
    print(f"{twin.name} {twin.url} {took_s:.0f} s {twin.memory_mb():.0f} MB", flush=True)


def _say_pace(twin: Twin) -> None:
    try:
        pace = twin.pace()
    except ServerError:  # It was never ready.
        return
    print(
        f"{twin.name} {pace.steps} steps, {pace.busy_s:.1f} s; {pace.overruns} overruns, "
        f"{pace.lost_s:.2f} s lost"
    )


def _until_one_ends(fleet: Fleet) -> None:
    """Raises `ServerError` with its last words."""
    while True:
        for twin in fleet.twins:
            if (status := twin.server.exit_status()) is not None:
                raise ServerError(f"{twin.name} exited with {status}:\n{twin.server.log_tail()}")
        time.sleep(1.0)


if __name__ == "__main__":
    sys.exit(main())
