"""`ullage-tune record`: write down what the plugins of a node say, while its sidecar goes on.

The sidecar copies what it hears anyway to whoever asks (`GET /v1/steps`): vLLM is not restarted and
does nothing more, nothing is written on the node, and who reads too slowly loses records, not the
sidecar time. (A tee before the sidecar's socket would need plugins or sidecar to be told of another
one; a second socket would need vLLM restarted, and a second write in each step.)

    curl -s http://gpu-01:9400/v1/steps?seconds=60 > steps.ulg          does the same

Exit status: 0 done, 1 nobody could be asked, or it ended early (what came is kept), 2 wrong
arguments, 130 Ctrl-C (what came is kept).
"""

import argparse
import asyncio
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import aiohttp

from ullage_shared.config import ConfigError
from ullage_shared.secret import Secret, own
from ullage_tune.fit.recording import Key, RecordingError, Said, read
from ullage_tune.flags import base_url, counted, failed

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

MOST_SECONDS: Final = 3600
MOST_MB: Final = 256
_CONNECT_WITHIN_S: Final = 10.0
_LATE_S: Final = 30.0
"""The answer ends by itself; so long behind that the sidecar is taken for dead."""


def add_record(commands: "Commands") -> None:
    """The subcommand `record`."""
    flags = commands.add_parser(
        "record",
        allow_abbrev=False,
        help="record the steps of a node's engines, from its running sidecar",
        description="Writes what vLLM's plugins say to a sidecar, which goes on as before. A step "
        "is 96 bytes.",
        epilog="Ctrl-C ends it early; what has come is kept.",
    )
    flags.add_argument("file", type=Path, metavar="FILE", help="a new one")
    flags.add_argument(
        "--sidecar",
        type=base_url,
        default="http://127.0.0.1:9400",
        metavar="URL",
        help="[%(default)s]",
    )
    flags.add_argument(
        "--token-file",
        default="",
        metavar="FILE",
        help="with the token that the sidecar wants (its access.token)",
    )
    flags.add_argument(
        "--seconds",
        type=counted,
        default=600,
        metavar="N",
        help=f"for so long, {MOST_SECONDS} at most [%(default)s]",
    )
    flags.add_argument(
        "--most-mb",
        type=counted,
        default=MOST_MB,
        metavar="N",
        help="no more than so many megabytes [%(default)s]",
    )
    flags.set_defaults(go=run)


def run(arguments: argparse.Namespace) -> int:
    """Carry it out; the exit status."""
    if arguments.seconds > MOST_SECONDS:
        return failed(f"--seconds {arguments.seconds}: wanted {MOST_SECONDS} or less", 2)
    try:
        token = own("--token-file", arguments.token_file)
    except ConfigError as error:
        return failed(str(error), 2)
    try:
        file = arguments.file.open("xb", buffering=0)
    except OSError as error:
        return failed(f"{arguments.file}: {error.strerror}; wanted a new file", 2)
    with file:
        status = asyncio.run(_record(arguments, file, token))
    if not arguments.file.stat().st_size:
        arguments.file.unlink()
        return status or failed(f"{arguments.sidecar}: no plugin spoke to it", 1)
    return _tell(arguments.file) or status


async def _record(arguments: argparse.Namespace, file: IO[bytes], token: Secret | None) -> int:
    task = asyncio.ensure_future(_take(arguments, file, token))
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
    with suppress(asyncio.CancelledError):
        return await task
    return 130


async def _take(arguments: argparse.Namespace, file: IO[bytes], token: Secret | None) -> int:
    url = f"{arguments.sidecar}/v1/steps?seconds={arguments.seconds}"
    timeout = aiohttp.ClientTimeout(
        total=arguments.seconds + _LATE_S, sock_connect=_CONNECT_WITHIN_S
    )
    left = arguments.most_mb * 1_000_000
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, headers=token.headers if token else None) as answer,
        ):
            if answer.status != 200:
                text = (await answer.text())[:200].strip()
                return failed(f"{url}: status {answer.status}: {text}", 1)
            async for came in answer.content.iter_any():
                file.write(came[:left])
                left -= len(came)
                if left <= 0:
                    print(f"{arguments.most_mb} MB are there", file=sys.stderr)
                    break
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        return failed(f"{url}: {str(error) or type(error).__name__}", 1)
    return 0


def _tell(path: Path) -> int:
    """Say what has been recorded; the exit status."""
    try:
        recording = read(path)
    except RecordingError as error:
        return failed(str(error), 1)
    for key, said in sorted(recording.engines.items()):
        print(_line(key, said), file=sys.stderr)
    return 0


def _line(key: Key, said: Said) -> str:
    lost = sum(
        steps[-1].seq - steps[0].seq + 1 - len(steps) for steps in said.senders.values() if steps
    )
    return f"{key}: {said.steps} steps, {lost} lost"
