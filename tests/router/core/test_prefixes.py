from dataclasses import replace

from ullage_router.core.fleet import Replica
from ullage_router.core.prefixes import _MOST_BITS, Prefixes
from ullage_shared.address import parse_base_url


def replica(name: str, boot_id: str | None = "boot") -> Replica:
    url, address = parse_base_url(f"http://{name}:8000")
    return Replica(url, address, boot_id=boot_id)


A, B, C = replica("a"), replica("b"), replica("c")


def held(prefixes: Prefixes, *keys: int) -> dict[str, int]:
    """The longest level that each has, by name."""
    levels: dict[str, int] = {}
    for name, bit in zip("abc", map(prefixes.bit_of, (A, B, C)), strict=True):
        for holders, level in prefixes.found(keys):
            if holders & bit:
                assert name not in levels
                levels[name] = level
    return levels


def test_nobody_has_what_nobody_was_sent() -> None:
    prefixes = Prefixes(10)
    assert held(prefixes) == held(prefixes, 1, 2) == {}
    prefixes.keep((), A)
    assert len(prefixes) == 0


def test_each_has_the_longest_of_what_it_was_sent() -> None:
    prefixes = Prefixes(10)
    prefixes.keep((1,), A)
    prefixes.keep((1, 2, 3), B)
    prefixes.keep((1, 2), C)
    assert held(prefixes, 1, 2, 3, 4) == {"a": 0, "b": 2, "c": 1}
    assert held(prefixes, 1) == {"a": 0, "b": 0, "c": 0}
    assert held(prefixes, 9) == {}


def test_one_that_has_started_anew_is_another_and_has_nothing() -> None:
    prefixes = Prefixes(10)
    prefixes.keep((1, 2), A)
    anew = replace(A, boot_id="next")
    assert prefixes.bit_of(anew) == 0
    prefixes.keep((1,), anew)
    assert held(prefixes, 1, 2) == {}
    bit = prefixes.bit_of(anew)
    assert [level for holders, level in prefixes.found((1, 2)) if holders & bit] == [0]


def test_one_whose_incarnation_becomes_known_is_the_same() -> None:
    prefixes = Prefixes(10)
    prefixes.keep((1,), replica("a", None))
    given = prefixes.given
    prefixes.keep((2,), A)
    assert prefixes.given == given
    assert held(prefixes, 1) == held(prefixes, 2) == {"a": 0}


def test_what_was_said_of_bits_is_good_until_another_is_given() -> None:
    prefixes = Prefixes(10)
    seen = {prefixes.given}
    for each in (A, B, replace(A, boot_id="next")):
        prefixes.keep((1,), each)
        assert prefixes.given not in seen
        seen.add(prefixes.given)
        prefixes.keep((1, 2), each)
        assert prefixes.given in seen


def test_beyond_the_limit_the_keys_unused_for_longest_are_forgotten() -> None:
    prefixes = Prefixes(2)
    prefixes.keep((1, 2), A)
    prefixes.keep((1,), B)
    prefixes.keep((3,), A)
    assert len(prefixes) == 2
    assert held(prefixes, 2) == {}
    assert held(prefixes, 1) == {"a": 0, "b": 0}


def test_of_a_long_chain_the_first_and_the_last_are_kept() -> None:
    prefixes = Prefixes(1_000)
    prefixes.keep(tuple(range(34)), A)
    assert [key for key in range(34) if held(prefixes, key)] == [0, 1, *range(26, 34)]


def test_after_very_many_starts_all_is_forgotten_and_goes_on() -> None:
    prefixes = Prefixes(10)
    for boot in range(_MOST_BITS + 1):
        prefixes.keep((1,), replica("a", f"boot {boot}"))
    assert held(prefixes, 1) == {}
    last = replica("a", f"boot {_MOST_BITS}")
    assert prefixes.bit_of(last) == prefixes.found((1,))[0].holders == 1


def test_some_of_the_holders_are_told_from_any_one_on() -> None:
    prefixes = Prefixes(10)
    assert list(prefixes.some_of(0, 5, 0.5)) == []
    for each in (A, B, C):
        prefixes.keep((1,), each)
    ((all_three, _),) = prefixes.found((1,))
    names = [A.key, B.key, C.key]
    assert list(prefixes.some_of(all_three, 5, 0.0)) == names
    assert list(prefixes.some_of(all_three, 2, 0.5)) == [B.key, C.key]
    assert list(prefixes.some_of(all_three, 2, 0.99)) == [C.key, A.key]
    assert list(prefixes.some_of(all_three, 0, 0.0)) == []
    assert list(prefixes.some_of(prefixes.bit_of(B), 5, 0.9)) == [B.key]
    prefixes.left(A.key)
    assert [prefixes.there(n) for n in (0, prefixes.bit_of(A), all_three)] == [0, 0, 2]


def test_one_that_has_left_is_not_told_and_once_it_is_back_knows_what_it_knew() -> None:
    prefixes = Prefixes(10)
    for each in (A, B):
        prefixes.keep((1,), each)
    prefixes.left(A.key)
    prefixes.left("http://never-heard-of:8000")
    ((both, _),) = prefixes.found((1,))
    assert list(prefixes.some_of(both, 5, 0.0)) == [B.key]
    prefixes.keep((2,), A)
    assert list(prefixes.some_of(both, 5, 0.0)) == [A.key, B.key]
    assert held(prefixes, 1) == {"a": 0, "b": 0}
