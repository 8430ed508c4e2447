"""`ullage-tune fit`: how long an engine's steps take, from a recording of them.

The engine file goes to standard output, what it is worth to standard error.

Exit status: 0 done, 1 the recording does not tell all, 2 wrong arguments or file.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ullage_tune.engine_file import LEAST, written
from ullage_tune.fit.fitted import WANTED, FitError, Fitted, fit
from ullage_tune.fit.recording import RecordingError, chosen, cut_off, read
from ullage_tune.fit.told import report
from ullage_tune.flags import counted, failed
from ullage_tune.gpu import StepModel

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_fit(commands: "Commands") -> None:
    """The subcommand `fit`."""
    flags = commands.add_parser(
        "fit",
        allow_abbrev=False,
        help="learn how long an engine's steps take, from a recording",
        description="Fits seconds per step, token, sequence and token of context to what `record` "
        "wrote, and prints an engine file for `run --engine`.",
        epilog="Recordings of one engine joined by cat are one recording.",
    )
    flags.add_argument("recording", type=Path, metavar="FILE", help="as written by record")
    flags.add_argument(
        "--server", metavar="NAME[:RANK]", help="the engine, where the recording has several"
    )
    flags.add_argument(
        "--assume",
        type=_assumed,
        action="append",
        default=[],
        metavar="PARAMETER=S",
        help=f"one that is known from elsewhere, in seconds: {', '.join(StepModel._fields)}",
    )
    for name in LEAST:
        flags.add_argument(
            f"--{name.replace('_', '-')}", type=counted, metavar="N", help="[as recorded]"
        )
    flags.set_defaults(go=run)


def run(arguments: argparse.Namespace) -> int:
    """Carry it out; the exit status."""
    path, fixed = arguments.recording, dict(arguments.assume)
    flags = {name: value for name in LEAST if (value := getattr(arguments, name)) is not None}
    try:
        recording = read(path)
        key, said = chosen(recording.engines, arguments.server)
    except RecordingError as error:
        return failed(str(error), 2)
    if recording.cut_bytes:
        print(f"{path}: {cut_off(recording)}", file=sys.stderr)
    try:
        fitted = fit(said, flags, fixed)
    except FitError as error:
        return failed(f"{key}: {error}", 1)
    lines = report(f"{path.name}, {key}", said, fitted, fixed)
    print("\n".join(lines), file=sys.stderr)
    if fitted.solution.untold:
        return failed(f"{key}: {_untold(fitted)}", 1)
    print(written(fitted.engine, ["Fitted by ullage-tune fit.", *lines]), end="")
    return 0


def _untold(fitted: Fitted) -> str:
    names = fitted.solution.untold
    wanted = "; ".join(f"{name}: {WANTED[name]}" for name in names)
    return f"not told by this recording, wanted in it ({wanted}), or --assume {names[0]}=S"


def _assumed(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    if name not in StepModel._fields:
        wanted = ", ".join(StepModel._fields)
        raise argparse.ArgumentTypeError(f"{text!r}: wanted one of {wanted}, and =S behind it")
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: wanted {name}=S, in seconds, 0 or more")
    return name, seconds
