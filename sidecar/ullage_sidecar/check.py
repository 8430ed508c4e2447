"""`ullage-sidecar check`: is this configuration in order, what would be in force, who answers?

It reads what a start would read, and the files that it names (authorities, API keys, tokens,
certificates), and says what is wrong: all faults of one kind at a time (keys and values, then
files). With `--connect` it also asks each engine's `/health` once.

Exit status: see `ullage_shared.check`.
"""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ullage_shared import admission, check
from ullage_shared.check import Asked
from ullage_shared.config import ConfigError
from ullage_shared.tls import trusting
from ullage_sidecar import health
from ullage_sidecar.cli import add_keys, flags
from ullage_sidecar.config import Config, EngineEntry, read
from ullage_sidecar.dummy_client import RefusedError
from ullage_sidecar.warmer import key_in

_COMMAND: Final = "ullage-sidecar check"
_EXAMPLE: Final = Config(engine=(EngineEntry(url="http://gpu-01:8000"),))


def main(words: Sequence[str]) -> int:
    """Check. Returns the exit status."""
    command = check.parser(_COMMAND, add_keys)
    options = command.parse_args(words[1:])
    file, given = check.file_of(command, options), flags(options)
    try:
        config = _EXAMPLE if options.print and not (file or given) else read(file, given)
        faults = tuple(_faults_of_files(config))
    except ConfigError as error:
        faults = error.faults
    if faults:
        return check.faults(_COMMAND, faults)
    check.say(config, options, str(file or "The command line"), _rows(config))
    if not options.connect:
        return check.IN_ORDER
    return check.say_asked(asyncio.run(_ask_all(config)), as_comment=options.print)


def _faults_of_files(config: Config) -> Iterator[str]:
    """What is wrong with the files that the configuration names."""
    try:
        trusting("health.ca", config.health.ca)
    except ConfigError as error:
        yield from error.faults
    try:
        admission.read(config.access, config.tls)
    except ConfigError as error:
        yield from error.faults
    for index, entry in enumerate(config.engine):
        try:
            if entry.api_key_file:
                key_in(Path(entry.api_key_file))
        except RefusedError as error:
            yield str(error).replace("engine[]", f"engine[{index}]")


def _rows(config: Config) -> dict[str, str]:
    return {
        "routers": config.listen + admission.told(config.access, config.tls),
        "HAProxy": config.agent_listen or "not asked for (agent_listen)",
        "plugin": f"{config.socket} (ULLAGE_SOCKET of vLLM)",
        "node": config.node,
        "engines": ", ".join(f"{entry.name} at {entry.url}" for entry in config.engine),
    }


async def _ask_all(config: Config) -> list[Asked]:
    async with health.session(config.health) as client:
        probes = [health.probe(client, entry.url) for entry in config.engine]
        answers = await asyncio.gather(*probes)
    return [
        Asked(
            f"engine {entry.name} at {entry.url}",
            well=probe.fault is None,
            said=probe.fault or f"{health.PATH} says {health.OK}",
        )
        for entry, probe in zip(config.engine, answers, strict=True)
    ]
