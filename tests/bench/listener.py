"""The sidecar's own receiving end, and nothing else of it: `listener.py SOCKET`.

Says `listening`, forgets what it hears, and ends when its standard input does.
"""

import asyncio
import sys
from pathlib import Path

from ullage_sidecar.sources.plugin import readings


async def listen(path: Path) -> None:
    """Receive until the parent closes the pipe."""
    with readings(path, lambda _: None, lambda: True):
        print("listening", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(listen(Path(sys.argv[1])))
