"""From vLLM's stats objects to step datagrams: what one engine step says, in a microsecond.

Rule: vLLM calls these classes unstable, so nothing here trusts them. Attributes as we know them
(0.11.1 to 0.32) are read at full speed; when that fails, each is read by itself, and one that is
gone or makes no sense is sent as unknown (NaN) and named once in the log. Never a wrong number.

vLLM gives tokens and lookups per step; a datagram carries totals since the start. A total that
missed a part is unknown from then on.
"""

import logging
import math
from operator import attrgetter
from struct import error as StructError  # noqa: N812 (an exception's name is a class's name)
from typing import Any, Final

from ullage_sidecar.channel import step_packer

STATS_FAULTS: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    StructError,
    TypeError,
    ValueError,
)
"""What reading an attribute of an object that is not what it was can raise."""

_COUNT_LIMIT: Final = 2.0**53  # beyond it a double does not count by ones
_UNKNOWN: Final = math.nan

_log = logging.getLogger("vllm.ullage")  # below `vllm`, so that it has vLLM's handler and level


class StepEncoder:
    """Numbers the steps of one engine, keeps its totals, packs the datagrams."""

    __slots__ = (
        "_generated",
        "_hits",
        "_named",
        "_pack",
        "_preempted",
        "_prompt",
        "_queries",
        "_seq",
        "unstepped",
    )

    def __init__(self, sender: int) -> None:
        self._pack = step_packer(sender)
        self._seq = 0
        self._prompt = self._generated = self._preempted = 0.0
        self._queries = self._hits = 0.0
        self._named: set[str] = set()
        self.unstepped = 0
        """Steps whose scheduler stats went elsewhere, or nowhere."""

    @property
    def totals(self) -> tuple[float, ...]:
        """Prompt and generated tokens, preemptions, prefix queries and hits, since the start."""
        known = (self._prompt, self._generated, self._preempted, self._queries, self._hits)
        return tuple(total if total < _COUNT_LIMIT else _UNKNOWN for total in known)

    def step(self, scheduler: Any, iteration: Any, at_s: float) -> bytes:
        """Pack one step. `iteration` is None where a step produced no token."""
        self._seq += 1
        try:
            return self._read_at_once(scheduler, iteration, at_s)
        except STATS_FAULTS:
            return self._read_one_by_one(scheduler, iteration, at_s)

    def count(self, iteration: Any) -> None:
        """Add the tokens of a step whose scheduler stats went to another API process."""
        self.unstepped += iteration is not None
        self._add_tokens(iteration)

    def _add_tokens(self, iteration: Any) -> None:
        if iteration is not None:
            self._prompt += self._read(iteration, "num_prompt_tokens")
            self._generated += self._read(iteration, "num_generation_tokens")
            self._preempted += self._read(iteration, "num_preempted_reqs")

    def _read_at_once(self, scheduler: Any, iteration: Any, at_s: float) -> bytes:
        running = scheduler.num_running_reqs
        ready = scheduler.num_waiting_reqs
        # vLLM before 0.20 counts the skipped among the waiting, and has no such field.
        waiting = ready + getattr(scheduler, "num_skipped_waiting_reqs", 0)
        kv_usage = scheduler.kv_cache_usage
        prefix = scheduler.prefix_cache_stats
        queries = self._queries + prefix.queries
        hits = self._hits + prefix.hits
        prompt, generated, preempted = self._prompt, self._generated, self._preempted
        if iteration is not None:
            prompt += iteration.num_prompt_tokens
            generated += iteration.num_generation_tokens
            preempted += iteration.num_preempted_reqs
        if not (
            0.0 <= kv_usage <= 1.0
            and 0 <= running < _COUNT_LIMIT
            and 0 <= ready <= waiting < _COUNT_LIMIT
            and self._queries <= queries < _COUNT_LIMIT
            and self._hits <= hits < _COUNT_LIMIT
            and self._prompt <= prompt < _COUNT_LIMIT
            and self._generated <= generated < _COUNT_LIMIT
            and self._preempted <= preempted < _COUNT_LIMIT
        ):
            raise ValueError
        datagram = self._pack(
            self._seq,
            at_s,
            running,
            waiting,
            kv_usage,
            prompt,
            generated,
            preempted,
            queries,
            hits,
        )
        self._prompt, self._generated, self._preempted = prompt, generated, preempted
        self._queries, self._hits = queries, hits
        return datagram

    def _read_one_by_one(self, scheduler: Any, iteration: Any, at_s: float) -> bytes:
        running = self._read(scheduler, "num_running_reqs")
        waiting = self._read(scheduler, "num_waiting_reqs")
        waiting += self._read(scheduler, "num_skipped_waiting_reqs", absent=0.0)
        kv_usage = self._read(scheduler, "kv_cache_usage", limit=math.nextafter(1.0, 2.0))
        self._queries += self._read(scheduler, "prefix_cache_stats.queries")
        self._hits += self._read(scheduler, "prefix_cache_stats.hits")
        self._add_tokens(iteration)
        gauges = (running, waiting if waiting < _COUNT_LIMIT else _UNKNOWN, kv_usage)
        return self._pack(self._seq, at_s, *gauges, *self.totals)

    def _read(
        self, stats: Any, path: str, limit: float = _COUNT_LIMIT, absent: float = _UNKNOWN
    ) -> float:
        """Read the number at `path`, 0 ≤ it < `limit`. Unknown if it is anything else."""
        try:
            value = attrgetter(path)(stats)
            if isinstance(value, int | float) and 0 <= value < limit:
                return float(value)
        except AttributeError:
            if not math.isnan(absent):
                return absent
            self._note(path, "is not there")
        except STATS_FAULTS as error:
            self._note(path, f"raises {type(error).__name__}")
        else:
            self._note(path, f"is not a number from 0 to {limit:g}")
        return _UNKNOWN

    def _note(self, path: str, fault: str) -> None:
        if path not in self._named:
            self._named.add(path)
            _log.warning("Ullage: vLLM's stats.%s %s; it is reported as unknown", path, fault)
