"""`ullage-aggregator check`: is this configuration in order, what would be in force, who answers?

With `--connect` it also looks at each source that lists sidecars, and asks each sidecar once.

Exit status: see `ullage_shared.check`.
"""

import asyncio
import ssl
from collections.abc import Sequence
from typing import Final

import aiohttp

from ullage_shared import asking, check
from ullage_shared.aggregator.cli import add_keys, flags
from ullage_shared.aggregator.config import Config, read
from ullage_shared.check import Asked
from ullage_shared.config import ConfigError
from ullage_shared.tls import trusting

_COMMAND: Final = "ullage-aggregator check"
_EXAMPLE: Final = Config(sidecars=("file:/etc/ullage/sidecars.yml",))


def main(words: Sequence[str]) -> int:
    """Check. Returns the exit status."""
    command = check.parser(_COMMAND, add_keys)
    options = command.parse_args(words[1:])
    file, given = check.file_of(command, options), flags(options)
    try:
        config = _EXAMPLE if options.print and not (file or given) else read(file, given)
        trust = trusting("tls.ca", config.tls.ca)
    except ConfigError as error:
        return check.faults(_COMMAND, error.faults)
    rows = {
        "routers": config.listen,
        "sidecars": ", ".join(config.sidecars),
        "node": config.node,
    }
    check.say(config, options, str(file or "The command line"), rows)
    if not options.connect:
        return check.IN_ORDER
    return check.say_asked(asyncio.run(_ask_all(config, trust)), as_comment=options.print)


async def _ask_all(config: Config, trust: ssl.SSLContext) -> list[Asked]:
    connector = aiohttp.TCPConnector(ssl=trust, limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        sidecars, sources = await asking.look("sidecars", config.sidecars)
        told = await asyncio.gather(*(asking.ask_sidecar(session, url) for url in sidecars))
        return sources + [asked for asked, _ in told]
