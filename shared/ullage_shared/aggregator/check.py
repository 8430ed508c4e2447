"""`ullage-aggregator check`: is this configuration in order, what would be in force, who answers?

It reads what a start or a reload would read, tokens, certificates and keys too. With `--connect` it
also looks at each source that lists sidecars, and asks each sidecar once.

Exit status: see `ullage_shared.check`.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import aiohttp

from ullage_shared import admission, asking, check
from ullage_shared.aggregator import files
from ullage_shared.aggregator.cli import add_keys, flags
from ullage_shared.aggregator.config import Config, read
from ullage_shared.check import Asked
from ullage_shared.config import ConfigError

_COMMAND: Final = "ullage-aggregator check"
_EXAMPLE: Final = Config(sidecars=("file:/etc/ullage/sidecars.yml",))


def main(words: Sequence[str]) -> int:
    """Check. Returns the exit status."""
    command = check.parser(_COMMAND, add_keys)
    options = command.parse_args(words[1:])
    file, given = check.file_of(command, options), flags(options)
    try:
        config = _EXAMPLE if options.print and not (file or given) else read(file, given)
        held = files.read(config)
    except ConfigError as error:
        return check.faults(_COMMAND, error.faults)
    rows = {
        "routers": config.listen + admission.told(config.access, config.tls),
        "sidecars": ", ".join(config.sidecars),
        "node": config.node,
    }
    check.say(config, options, str(file or "The command line"), rows)
    if not options.connect:
        return check.IN_ORDER
    return check.say_asked(asyncio.run(_ask_all(config, held)), as_comment=options.print)


async def _ask_all(config: Config, held: files.Files) -> list[Asked]:
    connector = aiohttp.TCPConnector(ssl=held.peers, limit=0)
    token = held.sidecar_token
    async with aiohttp.ClientSession(connector=connector) as session:
        sidecars, sources = await asking.look("sidecars", config.sidecars)
        told = await asyncio.gather(*(asking.ask_sidecar(session, url, token) for url in sidecars))
        return sources + [asked for asked, _ in told]
