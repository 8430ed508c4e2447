"""The data plane between misbehaving clients and replicas: the bounded form of `make fuzz`."""

import pytest

from storm import storm

pytestmark = pytest.mark.slow


async def test_a_few_bad_peers_disturb_nobody() -> None:
    await storm(seed=1, connections=60)


@pytest.mark.parametrize("seed", [2, 3])
async def test_many_bad_peers_disturb_nobody(seed: int) -> None:
    await storm(seed, connections=300)
