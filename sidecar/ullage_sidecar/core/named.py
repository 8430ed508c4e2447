"""Which engines a name means, for peers that ask by name: a load balancer knows servers, not ids.

    asked        means
    (nothing)    the node's only server; nobody, where it has several
    NAME         the server `[[engine]]` NAME: all its data-parallel ranks together
    NAME:RANK    that rank alone; of a server that has one engine, rank 0 is the server

The ranks of a server whose plugin has not spoken are not known yet: until then each of them is the
server. Anything else means nobody.
"""

from collections.abc import Sequence

from ullage_shared.snapshot import Snapshot


def named(replicas: Sequence[Snapshot], asked: str) -> tuple[Snapshot, ...]:
    """The replicas of one node that `asked` means; empty: nobody."""
    if not asked:
        return tuple(replicas) if len(servers(replicas)) == 1 else ()
    server, colon, rank = asked.partition(":")
    return tuple(
        replica
        for replica in replicas
        if server == _server(replica) and (not colon or _is_rank(replica, rank))
    )


def servers(replicas: Sequence[Snapshot]) -> list[str]:
    """The names that one may ask for, in the document's order."""
    return list(dict.fromkeys(_server(replica) for replica in replicas))


def _server(replica: Snapshot) -> str:
    return replica.id.partition("/")[2].partition(":")[0]


def _is_rank(replica: Snapshot, rank: str) -> bool:
    if replica.dp_rank is None and replica.boot_id is None:
        return rank.isascii() and rank.isdigit()
    return rank == str(replica.dp_rank or 0)
