"""From vLLM's config to hellos: who one engine is, and what it can hold.

Rule: as in stats.py. The config's attributes are no stable interface either; one that is gone or
makes no sense is unknown (`None`) and named once in the log.
"""

import contextlib
import logging
import multiprocessing
import os
import time
from operator import attrgetter, index
from pathlib import Path
from typing import Any

from ullage_sidecar.core.reading import Hello
from ullage_sidecar.stats import STATS_FAULTS

_log = logging.getLogger("vllm.ullage")


class Identity:
    """What one stat logger says of its engine; read afresh for each hello, as vLLM learns late.

    `sums_own_engines`: see `_engines_summed`.
    """

    def __init__(
        self,
        sender: int,
        name: str,
        config: Any,
        engine_index: int,
        *,
        vllm_version: str | None,
        sums_own_engines: bool,
    ) -> None:
        self._sender = sender
        self._name = name
        self._config = config
        self._engine_index = engine_index
        self._vllm_version = vllm_version
        self._sums_own_engines = sums_own_engines
        self._named: set[str] = set()
        self._started_s = time.monotonic()
        several = self._count("parallel_config._api_process_count") or 1
        parent = multiprocessing.parent_process() if several > 1 else None
        self._boot_id = _boot_id(os.getpid() if parent is None else parent.pid)

    def hello(self, unstepped: int, dropped: int) -> Hello:
        """Say who this is now, and what this sender has not been told or could not hand over."""
        return Hello(
            sender=self._sender,
            name=self._name,
            boot_id=self._boot_id,
            pid=os.getpid(),
            started_s=self._started_s,
            engine_index=self._engine_index,
            data_parallel_size=self._count("parallel_config.data_parallel_size") or 1,
            first_rank=self._first_rank(),
            ranks_here=self._ranks_here(),
            models=self._models(),
            total_blocks=self._total_blocks(),
            block_size=self._count("cache_config.block_size"),
            max_num_seqs=self._count("scheduler_config.max_num_seqs"),
            max_num_batched_tokens=self._count("scheduler_config.max_num_batched_tokens"),
            max_model_len=self._count("model_config.max_model_len"),
            vllm_version=self._vllm_version,
            unstepped=unstepped,
            dropped=dropped,
            said_s=time.monotonic(),
        )

    def _models(self) -> tuple[str, ...]:
        names = self._read("model_config.served_model_name")
        if isinstance(names, str):
            return (names,)
        return tuple(map(str, names)) if isinstance(names, list | tuple) else ()

    def _total_blocks(self) -> int | None:
        blocks, engines = self._count("cache_config.num_gpu_blocks"), self._engines_summed()
        return blocks // engines if blocks and engines else None

    def _engines_summed(self) -> int | None:
        """Over how many engines vLLM added up `num_gpu_blocks`: those this front end waited for.

        They are those of this server; but before vLLM 0.20 the front end of rank 0 waited for all
        in any case (`sums_own_engines` is False).
        """
        if self._balanced_outside() and not self._sums_own_engines and self._first_rank() == 0:
            return self._count("parallel_config.data_parallel_size")
        return self._ranks_here() or self._count("parallel_config.data_parallel_size")

    def _ranks_here(self) -> int | None:
        if self._is_offline():
            return 1
        if self._balanced_outside():
            return self._count("parallel_config.data_parallel_size_local")
        return None

    def _first_rank(self) -> int:
        if self._is_offline():
            return self._engine_index
        if self._balanced_outside():
            return self._count("parallel_config.data_parallel_rank") or 0
        return 0

    def _is_offline(self) -> bool:
        """One process per rank, none of which serves."""
        return self._read("parallel_config.data_parallel_rank_local") is not None

    def _balanced_outside(self) -> bool:
        """Are there several servers, each with some of the ranks?"""
        return not self._is_offline() and bool(
            self._read("parallel_config.data_parallel_external_lb")
            or self._read("parallel_config.data_parallel_hybrid_lb")
        )

    def _count(self, path: str) -> int | None:
        """Read a whole number ≥ 0. None: vLLM does not say (yet)."""
        value = self._read(path)
        if value is None:
            return None
        with contextlib.suppress(*STATS_FAULTS):
            if (count := index(value)) >= 0:
                return count
        self._note(path, "is not a whole number")
        return None

    def _read(self, path: str) -> Any:
        try:
            return attrgetter(path)(self._config)
        except STATS_FAULTS as error:
            self._note(path, f"raises {type(error).__name__}")
        return None

    def _note(self, path: str, fault: str) -> None:
        if path not in self._named:
            self._named.add(path)
            _log.warning("Ullage: vLLM's config.%s %s; it is reported as unknown", path, fault)


def _boot_id(server_pid: int | None) -> str:
    """Name one start of the server: its first process, and when that process began.

    vLLM's own `instance_id` will not do: every API process makes up another one.
    """
    machine, began_ticks = "", ""
    with contextlib.suppress(OSError, IndexError):
        machine = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
        # The second field, the command's name in brackets, may hold spaces and brackets itself.
        stat = Path(f"/proc/{server_pid}/stat").read_text(errors="replace")
        began_ticks = stat.rpartition(")")[2].split()[19]
    return f"{machine}-{server_pid}-{began_ticks}"
