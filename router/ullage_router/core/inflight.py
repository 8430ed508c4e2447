"""What this router has sent to each replica and not yet seen the end of.

Counted in requests, and in headroom: how much of the replica's capacity score they will take.

    share = max(1 / max_num_seqs, prompt tokens / tokens that the KV pool holds, a quarter at most)

which is what the request will occupy of the scarcer of the two; where the replica's size is not
known, one in `NOMINAL_SEQS`. Answers' lengths are not known, so they count for nothing. Prompts'
are guessed from their bytes: a guess must not make an idle replica look full.

The first byte of a stream tells that its prompt is computed. An answer in one piece does not: its
prompt counts as computed once it was expected to be.

Rule: a count is held by a `Hold`, and released exactly once, at the last byte, whatever the end.
"""

from collections import Counter, deque
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from types import TracebackType
from typing import Final, Self

from ullage_shared.snapshot import Snapshot

_CHANGES: Final = 1024
_MEAN_SHARE: Final = 0.02
_USUAL_TOKENS: Final = 1000.0
"""Of a prompt, until some have come: a router that has just started must not take others' queues
for nothing."""
_FEW_DUE: Final = 64
"""Up to so many of what is due are not looked through for what has ended."""
_NOTES: Final = 64
_NOTE_EVERY_S: Final = 0.1
MOST_BY_PROMPT: Final = 0.25
NOMINAL_SEQS: Final = 256
"""vLLM's own default of `max_num_seqs`."""


def share_of(snapshot: Snapshot | None, prompt_tokens: int) -> float:
    """How much of a replica's headroom a request takes, 0..1."""
    if snapshot is None:
        return 1.0 / NOMINAL_SEQS
    share = 1.0 / (snapshot.max_num_seqs or NOMINAL_SEQS)
    if snapshot.total_blocks and snapshot.block_size:
        by_prompt = prompt_tokens / (snapshot.total_blocks * snapshot.block_size)
        share = max(share, min(by_prompt, MOST_BY_PROMPT))
    return share


class Hold:
    """One request's place in the counts. Releasing twice releases once."""

    __slots__ = ("_key", "_load", "_share", "_tokens")

    def __init__(self, load: "InFlight", key: str, share: float, tokens: int) -> None:
        self._load: InFlight | None = load
        self._key = key
        self._share = share
        self._tokens: int | None = tokens
        count, taken = load._count, load._taken
        count[key] = count.get(key, 0) + 1
        taken[key] = taken.get(key, 0.0) + share
        load._unbegun[key] = load._unbegun.get(key, 0) + 1
        load._pending[key] = load._pending.get(key, 0) + tokens
        load.mean_tokens += _MEAN_SHARE * (tokens - load.mean_tokens)
        load.changes.append(key)
        load.changed += 1

    def begun(self) -> None:
        """The first byte of its answer has come: its prompt is computed."""
        load, tokens, key = self._load, self._tokens, self._key
        if load is None or tokens is None:
            return
        self._tokens = None
        if load._unbegun[key] > 1:
            load._unbegun[key] -= 1
            load._pending[key] -= tokens
        else:
            del load._unbegun[key], load._pending[key]
        if tokens:
            load.changes.append(key)
            load.changed += 1

    @property
    def awaited(self) -> bool:
        """Is its prompt still to be computed?"""
        return self._load is not None and self._tokens is not None

    def release(self) -> None:
        """Give the place back."""
        self.begun()
        load, self._load = self._load, None
        if load is None:
            return
        key, count, taken = self._key, load._count, load._taken
        if count[key] > 1:
            count[key] -= 1
            taken[key] -= self._share
        else:  # So that replicas that have left leave nothing behind, nor rounding a crumb.
            del taken[key]
            count.pop(key)  # Counter's own `del` is written in Python.
        load.changes.append(key)
        load.changed += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class InFlight:
    """The counts, by replica key."""

    __slots__ = (
        "_count",
        "_due",
        "_most_due",
        "_notes",
        "_pending",
        "_taken",
        "_unbegun",
        "by_replica",
        "changed",
        "changes",
        "last_seed",
        "mean_tokens",
        "pending",
        "taken",
        "unbegun",
    )

    def __init__(self) -> None:
        self._count: Counter[str] = Counter()
        self._taken: dict[str, float] = {}
        self.by_replica: Mapping[str, int] = self._count
        """Requests: a live view; a replica without any reads 0."""
        self.taken: Mapping[str, float] = self._taken
        """Headroom, in units of the capacity score: a live view; who has no request is missing."""
        self._unbegun: dict[str, int] = {}
        self._pending: dict[str, int] = {}
        self.unbegun: Mapping[str, int] = self._unbegun
        """Requests whose answer has not begun: a live view; who has none is missing."""
        self.pending: Mapping[str, int] = self._pending
        """Their prompts' tokens that are to be computed: likewise."""
        self.mean_tokens = _USUAL_TOKENS
        """Of a request's prompt that are to be computed, of late."""
        self._due: list[tuple[float, int, Hold]] = []
        self._most_due = _FEW_DUE
        self._notes: deque[tuple[float, Mapping[str, float]]] = deque(maxlen=_NOTES)
        self.changes: deque[str] = deque(maxlen=_CHANGES)
        """Whose counts have changed, the latest last; no older ones than fit."""
        self.changed = 0
        """How many changes there have been."""
        self.last_seed = -1
        """Of the replica that was chosen last, for those who choose in turn."""

    def hold(self, key: str, share: float = 0.0, tokens: int = 0) -> Hold:
        """Count one more, until the hold is released. `tokens`: of its prompt, to be computed."""
        return Hold(self, key, share, tokens)

    def begins(self, hold: Hold, at_s: float) -> None:
        """Nobody will tell when this one's prompt is computed: take it for that then."""
        due = self._due
        if len(due) >= self._most_due:  # Those that have begun already wait for nothing.
            due[:] = [each for each in due if each[2].awaited]
            heapify(due)
            self._most_due = max(_FEW_DUE, 2 * len(due))
        heappush(due, (at_s, self.changed, hold))

    def begin_due(self, now_s: float) -> None:
        """Take for computed what was expected to be by now."""
        due = self._due
        while due and due[0][0] <= now_s:
            heappop(due)[2].begun()

    @property
    def waited_for(self) -> int:
        """How many are kept for `begin_due`."""
        return len(self._due)

    def note(self, now_s: float) -> None:
        """Remember, for `taken_at`, what is taken now. A clock set back begins anew."""
        if self._notes and now_s < self._notes[-1][0]:
            self._notes.clear()
        if not self._notes or now_s - self._notes[-1][0] >= _NOTE_EVERY_S:
            self._notes.append((now_s, dict(self._taken)))

    def taken_at(self, then_s: float) -> Mapping[str, float]:
        """What was taken then: by the last note before it, or else by the first there is."""
        found: Mapping[str, float] = self._notes[0][1] if self._notes else {}
        for noted_s, taken in self._notes:
            if noted_s > then_s:
                break
            found = taken
        return found

    def __repr__(self) -> str:
        return f"InFlight({sum(self._count.values())}: {dict(self._count)})"
