"""What tests of the sidecar share.

Hypothesis here is repeatable and patient: the same examples each run, no limit on a slow machine.
"""

import asyncio

import pytest
from hypothesis import settings

from ullage_sidecar.channel import Sender

settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("repeatable")


@pytest.fixture
def until():
    """Wait until a condition holds, 10 s at most."""

    async def wait(condition):
        async with asyncio.timeout(10.0):
            while not condition():  # noqa: ASYNC110 (what is waited for lies in another process)
                await asyncio.sleep(0.005)

    return wait


@pytest.fixture
def sender_to():
    """A connected sender to a path; closed at the end."""
    opened = []

    def connect(path):
        sender = Sender(str(path))
        opened.append(sender)
        assert sender.connect()
        return sender

    yield connect
    for sender in opened:
        sender.close()
