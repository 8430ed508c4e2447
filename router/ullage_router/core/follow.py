"""A line-up after some of its replicas were heard again, without judging the others.

Snapshots come far more often than a replica joins, leaves, fills up or begins to drain: nearly
always the same candidates sit in the same seats, and only what is known of a few is another. Then a
word costs those few, and for the rest of the fleet no more than copies.

Whatever makes a difference to others than those that were heard is no matter for this: who may be
chosen at all, who is left out for failing, what silent ones are taken for. Then the line-up is to
be made anew.
"""

from itertools import compress
from operator import is_not

import msgspec

from ullage_router.core.breaker import CLOSED
from ullage_router.core.fleet import Fleet
from ullage_router.core.lineup import Judged, LineUp, Seat, judge
from ullage_router.core.rules import Rules
from ullage_shared.snapshot import RequestClass


def follow(
    before: LineUp, fleet: Fleet, size: RequestClass, now_s: float, rules: Rules
) -> tuple[LineUp, list[str]] | None:
    """The same candidates, as they are now, and the keys of those that were heard since.

    `before`: made for the same model, size and rules, with nobody tried. None: make it anew.
    """
    was = before.fleet
    if fleet.keys is not was.keys or not before.since_s <= now_s < before.until_s:
        return None  # Whoever joins or leaves makes other keys. The rest is as in `holds`.
    other = map(is_not, fleet.replicas.values(), was.replicas.values())
    heard = [*compress(fleet.keys, other)]
    judged, seats, until_s = dict(before.judged), [*before.seats], before.until_s
    for key in heard:
        old, new = judged[key], judge(fleet.replicas[key], size, now_s, rules)
        if not _stands_alike(old, new):
            return None
        judged[key] = new
        until_s = min(until_s, new.until_s)
        place = before.at.get(key)
        if place is None:
            continue
        seat = _seated_again(seats[place], new)
        if seat is None or _unsettles(before.silent_base, seats[place], seat, before.floor):
            return None
        seats[place] = seat
    line_up = LineUp(
        fleet,
        before.basis,
        tuple(seats),
        before.at,
        before.busy,
        before.exponent,
        before.floor,
        before.silent_base,
        now_s,
        until_s,
        judged,
    )
    return line_up, heard


def _stands_alike(old: Judged, new: Judged) -> bool:
    """May it be given a request for the same reason, or may it not?"""
    return (
        old.standing is new.standing
        and old.replica.breaker is new.replica.breaker
        and old.replica.models == new.replica.models
    )


def _seated_again(seat: Seat, now: Judged) -> Seat | None:
    """Its seat by what is known now; None: it is not known from this alone."""
    if now.seat is not None:
        return now.seat
    if now.replica.breaker is not CLOSED:  # Its share moves with time.
        return None
    return msgspec.structs.replace(seat, replica=now.replica, then=now.replica.taken_then)


def _unsettles(silent_base: float | None, old: Seat, new: Seat, floor: float) -> bool:
    """Does it change what silent ones are taken for: the worst above the floor?"""
    if silent_base is None or new.score is None:
        return False
    return old.base == silent_base or floor < new.base < silent_base
