"""Stands in for vLLM where there is none: `vllm_stand_in.py serve MODEL --port PORT`.

It has the plugin's variables, answers and tells of its steps as `LiveEngine` does; and as vLLM
does, it lets nothing finish when it is told to end.
"""

import argparse
import asyncio
import os
import secrets
import time

from live_engine import LiveEngine


async def serve(port: int) -> None:
    engine = LiveEngine(os.environ["ULLAGE_ENGINE"], secrets.randbits(63))
    engine.boot_id = secrets.token_hex(8)
    engine.started_s = time.monotonic()
    await engine.serve(port)
    await engine.live(os.environ["ULLAGE_SOCKET"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs=2)
    parser.add_argument("--port", type=int, required=True)
    asyncio.run(serve(parser.parse_args().port))
