"""KubeAI's consistent hashing with bounded loads, rule by rule."""

from collections import Counter
from random import Random

from fake_cluster import BlindCluster, request, send
from ullage_tune.rivals.kubeai import REPLICATION, KubeAi

OTHER = request(99)


def made(replicas: int = 4) -> tuple[KubeAi, BlindCluster]:
    cluster = BlindCluster(replicas)
    return KubeAi(cluster, Random(1)), cluster


def home(policy: KubeAi, *texts: int) -> int:
    """Where it goes while nothing is in flight."""
    replica = policy.choose(request(*texts), 0.0)
    assert replica is not None
    return replica


def test_a_message_has_its_home_in_every_router():
    first, _ = made()
    second = KubeAi(BlindCluster(4), Random(2))
    assert [home(first, text) for text in range(50)] == [home(second, text) for text in range(50)]


def test_homes_are_spread_over_all():
    policy, _ = made()
    homes = Counter(home(policy, text) for text in range(2000))
    assert min(homes.values()) > 350


def test_only_the_first_message_counts():
    policy, _ = made()
    assert len({home(policy, 5), *(home(policy, 5, 6, text) for text in range(30))}) == 1


def test_behind_a_system_prompt_the_message_counts():
    policy, _ = made()
    home(policy, 5, 1)
    homes = [home(policy, 5, text) for text in range(2, 40)]
    assert len(set(homes)) == 4
    assert homes == [home(policy, 5, text, 77) for text in range(2, 40)]
    assert [policy._first_message(request(5, text)) for text in (1, 2)] == [1, 2]


def test_a_message_may_have_as_many_as_the_mean_and_a_quarter():
    policy, _ = made(2)
    there = home(policy, 1)
    send(policy, OTHER, 1 - there, 3)
    # At 3 + 4 in flight 1.25 · 8 / 2 = 5 may be there with this one.
    send(policy, OTHER, there, 4)
    assert home(policy, 1) == there
    send(policy, OTHER, there, 1)
    # 3 + 5: 5.625, and it would be the sixth.
    assert home(policy, 1) == 1 - there


def test_the_next_that_fits_on_the_ring_has_it():
    policy, cluster = made()
    first = home(policy, 1)
    send(policy, OTHER, first, 40)
    second = home(policy, 1)
    assert second != first
    cluster.there = [replica for replica in range(4) if replica != first]
    assert home(policy, 1) == second


def test_while_nobody_fits_it_stays_at_home():
    policy, _ = made()
    there = home(policy, 1)
    send(policy, OTHER, there)
    # 1.25 · 2 / 4 = 0.625: not even the empty ones may have one.
    assert home(policy, 1) == there


def test_who_leaves_moves_only_its_own_messages():
    policy, cluster = made()
    before = [home(policy, text) for text in range(200)]
    cluster.there = [0, 1, 3]
    after = [home(policy, text) for text in range(200)]
    assert all(new == old for old, new in zip(before, after, strict=True) if old != 2)
    assert 2 not in after
    cluster.there = [0, 1, 3, 4]
    joined = [home(policy, text) for text in range(200)]
    assert all(new in (old, 4) for old, new in zip(after, joined, strict=True))


def test_what_is_in_flight_on_one_that_is_gone_is_not_in_the_mean():
    policy, cluster = made(3)
    there = home(policy, 1)
    gone = (there + 1) % 3
    send(policy, OTHER, gone, 100)
    cluster.there = sorted({0, 1, 2} - {gone})
    send(policy, OTHER, there, 4)
    assert home(policy, 1) == (there + 2) % 3


def test_the_ring_has_256_points_for_each():
    policy, _ = made()
    home(policy, 1)
    assert len(policy._ring) == 4 * REPLICATION == 1024
