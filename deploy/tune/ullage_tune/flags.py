"""What the subcommands' flags have in common: values, and words for those that are none."""

import argparse
import sys
from typing import Final

from ullage_tune.measure import Slo

_DEFAULT: Final = Slo()


def add_slo(flags: argparse.ArgumentParser) -> None:
    """What goodput means."""
    flags.add_argument(
        "--slo-ttft",
        type=positive,
        default=_DEFAULT.ttft_s,
        metavar="S",
        help="a good request's first token comes within so many seconds [%(default)s]",
    )
    flags.add_argument(
        "--slo-tpot",
        type=positive,
        default=_DEFAULT.tpot_s,
        metavar="S",
        help="and each further one within so many, on average [%(default)s]",
    )


def slo_of(arguments: argparse.Namespace) -> Slo:
    """What these flags say."""
    return Slo(arguments.slo_ttft, arguments.slo_tpot)


def positive(text: str) -> float:
    """A number > 0. Raises `ArgumentTypeError`."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: wanted a number > 0")
    return value


def counted(text: str) -> int:
    """A whole number > 0. Raises `ArgumentTypeError`."""
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: wanted a whole number > 0")
    return int(text)


def failed(message: str, status: int) -> int:
    """Say why there is no result; the exit status."""
    print(f"ullage-tune: {message}", file=sys.stderr)
    return status
