"""The fleet: every replica that this router knows, with the latest snapshot of each.

Rules
* A listed replica stays in the fleet, heard of or not. One that only a sidecar publishes leaves
  when that sidecar's document no longer names it, or it is no longer asked; a sidecar that falls
  silent removes nothing.
* While a replica is heard, an older `seq` of its `boot_id` never replaces a newer one, nor does the
  `boot_id` of before replace the one that has followed it. None is no other: a sidecar that was
  restarted does not know at once who it is that answers.
* A replica has one source: another that names it is heard once the first is silent for `OWNED_S`.
* Another that calls it by the same name tells of the same replica: two aggregators over the same
  sidecars. One speaks for it, the other stands by, and takes over once its picture is much the
  younger (see `sources`), or when the first no longer names it, or is lost. So a replica does not
  flap between them, nor does it leave while one of them tells of it.
* A source on the replica's own host speaks for it at once, whoever did before, and for as long as
  it is heard (see `sources`).
* Ages are counted on this router's clock: `age_s` as sent, plus the time since receipt.
* What was held against a server is forgotten when it has started anew (another `boot_id`).
* A server with several data-parallel ranks is several replicas at one URL. They take the place of
  the listed URL as soon as they are published.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from ullage_router.core.breaker import CLOSED, Breaker
from ullage_router.core.trend import FLAT, Trend, follow, held
from ullage_shared.address import Address, AddressError, parse_base_url
from ullage_shared.snapshot import SCHEMA, Document, Snapshot
from ullage_shared.sources import Named, at_home, heir, takes_over, telling

OWNED_S: Final = 3.0
SHOWN_AFTER_S: Final = 2.5
"""How long a request must be at a replica before its score shows it by half: vLLM's word is 0.2 to
0.4 s late, and the score a mean over 5 s by default."""

TakenAt = Callable[[float], Mapping[str, float]]
_NOTHING: Final[Mapping[str, float]] = MappingProxyType({})


def _nothing(_then_s: float) -> Mapping[str, float]:
    return _NOTHING


_parsed: Final = lru_cache(maxsize=16_384)(parse_base_url)
"""The same URLs come again and again."""


def key_of(url: str, dp_rank: int | None) -> str:
    """What names the replica at this URL for as long as it is there."""
    return url if dp_rank is None else f"{url}#{dp_rank}"


@dataclass(frozen=True, slots=True)
class Replica:
    """One place where a request may go. A value: what changes is a new one."""

    url: str
    """`http://host:port`, in normal form."""
    address: Address
    dp_rank: int | None = None
    snapshot: Snapshot | None = None
    """The latest word of its sidecar; None: never heard."""
    received_s: float = 0.0
    """When that came, on the router's monotonic clock."""
    source: str | None = None
    """URL of the sidecar, or the aggregator, that speaks for it."""
    models: frozenset[str] = frozenset()
    """Model names it answers to; empty: unknown."""
    learned: bool = False
    """Did the server itself say so? Its list beats its sidecar's, until it starts anew."""
    ambiguous: bool = False
    """Another replica goes by the same name: two nodes are configured alike."""
    breaker: Breaker = CLOSED
    """What is held against it for having given no answer."""
    trend: Trend = FLAT
    """Where its score has been going."""
    taken_then: float = 0.0
    """How much of its headroom this router's requests took when what the snapshot shows was sent:
    `SHOWN_AFTER_S` before it was made."""
    boot_id: str | None = None
    """The incarnation that it was last known to be."""
    boot_before: str | None = None
    """The incarnation before that one: whatever still comes from it is old."""
    key: str = field(init=False)
    """Names the replica for as long as it has this address."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", key_of(self.url, self.dp_rank))

    @property
    def id(self) -> str:
        """What people call it: its sidecar's name for it, else its host and port. Unique."""
        if self.snapshot is None or self.ambiguous:
            return self.key.removeprefix("http://")
        return self.snapshot.id

    def age_s(self, now_s: float) -> float | None:
        """How old the snapshot's picture is. None: there is none. A clock set back ages nothing."""
        if self.snapshot is None:
            return None
        return self.snapshot.age_s + max(0.0, now_s - self.received_s)


@dataclass(frozen=True, slots=True)
class Fleet:
    """All replicas, by key, in a stable order."""

    replicas: MappingProxyType[str, Replica] = field(default_factory=lambda: MappingProxyType({}))
    keys: tuple[str, ...] = ()
    """Theirs, in order: the same object for as long as nobody comes or goes."""
    listed: frozenset[str] = frozenset()
    """URLs of the operator's list."""
    named: Named = field(default_factory=lambda: MappingProxyType({}))
    """Of whom each source tells."""
    mixed: bool = False
    """Do the replicas serve different models? Only then must a request's model be known."""
    alike: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """For each model that is known to be served, one that the same replicas serve, always the
    same: adapters are many, and nearly all of them are alike."""


def fleet_of(urls: Iterable[str]) -> Fleet:
    """The fleet before anything was heard. Raises `AddressError`."""
    return relist(Fleet(), urls)


def relist(fleet: Fleet, urls: Iterable[str]) -> Fleet:
    """The operator's list is another one now. Raises `AddressError`.

    A replica that is no longer listed leaves, unless a sidecar publishes it too.
    """
    listed = dict(parse_base_url(url) for url in urls)
    kept = {
        key: replica
        for key, replica in fleet.replicas.items()
        if replica.source is not None or replica.url in listed
    }
    reached = {replica.url for replica in kept.values()}
    new = {url: Replica(url, listed[url]) for url in listed.keys() - reached}
    return _fleet(kept | new, frozenset(listed), fleet.named)


def hear(
    fleet: Fleet,
    source: str,
    document: Document,
    now_s: float,
    taken_at: TakenAt = _nothing,
) -> tuple[Fleet, tuple[str, ...]]:
    """Take in a sidecar's document: the new fleet, and a line for each replica it got wrong.

    `taken_at`: by key, the headroom that this router's requests took at a moment (see `inflight`).
    """
    faults: list[str] = []
    heard: dict[str, Replica] = {}
    told: set[str] = set()
    for snapshot in document.replicas:
        try:
            url, address = _parsed(snapshot.url)
        except AddressError as error:
            faults.append(f"replica {snapshot.id}: url {error}")
            continue
        key = key_of(url, snapshot.dp_rank)
        if key in heard:
            faults.append(f"replica {snapshot.id}: {key} is published twice")
            continue
        known = fleet.replicas.get(key) or _unheard(fleet, url, address, snapshot.dp_rank)
        heard[key], fault = _newer(known, snapshot, source, now_s, taken_at)
        if fault:
            faults.append(f"replica {snapshot.id}: {fault}")
        if not fault or heard[key].source == source:
            told.add(key)  # Of its own it tells, however badly; another's it only claims.
    named = telling(fleet.named, source, told)
    if _same_company(fleet, source, heard):
        stands_by = all(fleet.replicas[key] is replica for key, replica in heard.items())
        if stands_by and named is fleet.named:
            return fleet, tuple(faults)  # Nothing is to be judged anew.
        replicas = MappingProxyType(fleet.replicas | heard)
        return replace(fleet, replicas=replicas, named=named), tuple(faults)
    everything = {
        key: replica
        for key, replica in _without(fleet, source, named).items()
        if key not in heard and replica.source is not None
    } | heard
    reached = {replica.url for replica in everything.values()}
    for url in sorted(fleet.listed - reached):
        replica = _unheard(fleet, url, parse_base_url(url)[1])
        before = fleet.replicas.get(url, replica)
        everything[url] = replace(replica, breaker=before.breaker)
    return _fleet(everything, fleet.listed, named), tuple(faults)


def speaks_for_all(fleet: Fleet, source: str) -> bool:
    """Does it speak for every replica that it tells of? Else it stands by for some."""
    replicas = fleet.replicas
    return all(
        key in replicas and replicas[key].source == source for key in fleet.named.get(source, ())
    )


def lost(fleet: Fleet, source: str) -> Fleet:
    """It is no longer heard: whoever else tells of its replicas speaks for them from now on. Those
    of which nobody does stay as they are, and age."""
    if all(heir(fleet.named, source, key) is None for key in fleet.named.get(source, ())):
        return fleet
    kept = _without(fleet, source, fleet.named)
    return replace(fleet, replicas=MappingProxyType(fleet.replicas | kept))


def _without(fleet: Fleet, source: str, named: Named) -> dict[str, Replica]:
    """The replicas that `source` does not speak for, and those of its own that another tells of."""
    kept: dict[str, Replica] = {}
    for key, replica in fleet.replicas.items():
        if replica.source != source:
            kept[key] = replica
        elif (inherits := heir(named, source, key)) is not None:
            kept[key] = replace(replica, source=inherits)
    return kept


def _same_company(fleet: Fleet, source: str, heard: Mapping[str, Replica]) -> bool:
    """Does nobody join, leave, or change its sidecar, name or models? Then only `heard` is made
    anew: nearly always, and up to fifty times a second for each sidecar."""
    for key, replica in heard.items():
        before = fleet.replicas.get(key)
        if before is None or before.snapshot is None or replica.snapshot is None:
            return False
        if before.source != replica.source or before.models != replica.models:
            return False
        if before.snapshot.id != replica.snapshot.id:
            return False
    mine = len(_own(fleet, source))
    return mine == sum([replica.source == source for replica in heard.values()])


def _own(fleet: Fleet, source: str) -> dict[str, Replica]:
    """The replicas that `source` speaks for. Nobody else is looked at: it is asked at each word."""
    told = ((key, fleet.replicas.get(key)) for key in fleet.named.get(source, ()))
    return {key: replica for key, replica in told if replica and replica.source == source}


def _unheard(fleet: Fleet, url: str, address: Address, dp_rank: int | None = None) -> Replica:
    """A replica before its first snapshot, with what its server has said of its models."""
    learned = next((r.models for r in fleet.replicas.values() if r.learned and r.url == url), None)
    return Replica(
        url, address, dp_rank, models=learned or frozenset(), learned=learned is not None
    )


def forget(fleet: Fleet, source: str) -> Fleet:
    """A sidecar is no longer asked: as if it published nothing."""
    return hear(fleet, source, Document(schema=SCHEMA, node=source, replicas=()), 0.0)[0]


def vouch(fleet: Fleet, source: str, now_s: float, taken_at: TakenAt = _nothing) -> Fleet:
    """The sidecar says that nothing has changed: what it said last is true now."""
    taken = taken_at(now_s - SHOWN_AFTER_S)
    vouched = {
        key: _vouched(replica, now_s, taken.get(key, 0.0))
        for key, replica in _own(fleet, source).items()
    }
    return replace(fleet, replicas=MappingProxyType(fleet.replicas | vouched))


def learn_models(fleet: Fleet, url: str, models: frozenset[str]) -> Fleet:
    """A server's own list of models has come. Of what is known already nothing is made anew."""
    ranks = {key: replica for key, replica in fleet.replicas.items() if replica.url == url}
    alike = all(replica.models == models for replica in ranks.values())
    if alike and all(replica.learned for replica in ranks.values()):
        return fleet
    learned = {key: replace(replica, models=models, learned=True) for key, replica in ranks.items()}
    replicas = MappingProxyType(fleet.replicas | learned)
    if alike:
        return replace(fleet, replicas=replicas)
    return _fleet(replicas, fleet.listed, fleet.named)


def with_breaker(fleet: Fleet, key: str, breaker: Breaker) -> Fleet:
    """Something is held against a replica, or no longer. Unknown keys (it has left) change
    nothing."""
    replica = fleet.replicas.get(key)
    if replica is None or replica.breaker is breaker:
        return fleet
    changed = replace(replica, breaker=breaker)
    return replace(fleet, replicas=MappingProxyType(fleet.replicas | {key: changed}))


def _vouched(replica: Replica, now_s: float, taken: float) -> Replica:
    return replace(replica, received_s=now_s, trend=held(replica.trend, now_s), taken_then=taken)


def _newer(
    known: Replica, snapshot: Snapshot, source: str, now_s: float, taken_at: TakenAt
) -> tuple[Replica, str]:
    """What is known after this snapshot, and why that is not the snapshot itself."""
    last = known.snapshot
    owned = now_s - known.received_s <= OWNED_S
    if known.source is not None and known.source != source:
        age_s = known.age_s(now_s)
        home, was_home = at_home(source, known.url), at_home(known.source, known.url)
        if home and not was_home:
            last, owned = None, False  # What a stranger has said of it binds nobody.
            known = replace(known, snapshot=None, boot_id=None, boot_before=None, trend=FLAT)
        elif last is not None and age_s is not None and snapshot.id == last.id:
            keeps = was_home and not home and owned
            if keeps or not takes_over(age_s, snapshot.age_s):
                return known, ""
        elif owned:
            return known, f"{known.source} speaks for {known.key}"
    boot_id = snapshot.boot_id or known.boot_id
    same = known.boot_id in (None, boot_id)
    if last is not None and same and snapshot.seq < last.seq and owned:
        return known, f"seq {snapshot.seq} is older than {last.seq}"
    if not same and boot_id == known.boot_before and owned:
        return known, f"boot_id {boot_id} is older than {known.boot_id}"
    learned = known.learned and same
    models = frozenset(snapshot.models) or (known.models if same else frozenset())
    if last is not None and same and snapshot.seq == last.seq:
        trend = held(known.trend, now_s)
    else:
        trend = follow(known.trend if same else FLAT, snapshot.capacity_score, now_s)
    newer = replace(
        known,
        snapshot=snapshot,
        received_s=now_s,
        source=source,
        models=known.models if learned else models,
        learned=learned,
        breaker=known.breaker if same else CLOSED,
        trend=trend,
        taken_then=taken_at(now_s - snapshot.age_s - SHOWN_AFTER_S).get(known.key, 0.0),
        boot_id=boot_id,
        boot_before=known.boot_before if same else known.boot_id,
    )
    return newer, ""


def _fleet(replicas: Mapping[str, Replica], listed: frozenset[str], named: Named) -> Fleet:
    names = Counter(r.snapshot.id for r in replicas.values() if r.snapshot)
    names.update(key.removeprefix("http://") for key in replicas)
    ordered: dict[str, Replica] = {}
    for key, replica in sorted(replicas.items()):
        seen = replica.snapshot
        own = seen is not None and seen.id == key.removeprefix("http://")
        ambiguous = seen is not None and names[seen.id] > (2 if own else 1)
        ordered[key] = replace(replica, ambiguous=ambiguous)
    known = {replica.models for replica in ordered.values() if replica.models}
    alike = _alike(frozenset(known))
    mixed = len(known) > 1
    return Fleet(MappingProxyType(ordered), tuple(ordered), listed, named, mixed, alike)


@lru_cache(maxsize=8)
def _alike(lists: frozenset[frozenset[str]]) -> Mapping[str, str]:
    first: dict[frozenset[frozenset[str]], str] = {}
    alike = {}
    for model in sorted(frozenset().union(*lists)):
        servers = frozenset(names for names in lists if model in names)
        alike[model] = first.setdefault(servers, model)
    return MappingProxyType(alike)
