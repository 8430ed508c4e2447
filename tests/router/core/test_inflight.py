import pytest

from ullage_router.core.inflight import InFlight


def test_a_hold_counts_until_it_is_released() -> None:
    in_flight = InFlight()
    with in_flight.hold("a"), in_flight.hold("a"), in_flight.hold("b"):
        assert in_flight.by_replica["a"] == 2
        assert repr(in_flight) == "InFlight(3: {'a': 2, 'b': 1})"
    assert in_flight.by_replica["a"] == 0


def test_releasing_twice_releases_once() -> None:
    """Report 5: −1 after churn."""
    in_flight = InFlight()
    first, second = in_flight.hold("a"), in_flight.hold("a")
    first.release()
    first.release()
    assert in_flight.by_replica["a"] == 1
    second.release()
    second.release()
    assert in_flight.by_replica["a"] == 0


def test_an_error_releases_too() -> None:
    """Report 5: not decremented on error."""
    in_flight = InFlight()
    with pytest.raises(RuntimeError), in_flight.hold("a"):
        raise RuntimeError
    assert repr(in_flight) == "InFlight(0: {})"


def test_replicas_that_have_left_leave_nothing_behind() -> None:
    """Report 3: leaked dicts."""
    in_flight = InFlight()
    for number in range(1000):
        in_flight.hold(f"replica-{number}").release()
        assert in_flight.by_replica[f"replica-{number}"] == 0  # Looking adds nothing either.
    assert repr(in_flight) == "InFlight(0: {})"
