"""The stat logger that vLLM loads: hands every engine step to the sidecar.

Rules of living in someone else's process, on the thread that streams its tokens:

* nothing here raises, waits, or prints more than once per kind of trouble;
* nothing here happens at all unless a sidecar is expected: `ULLAGE_SOCKET` names its socket, or
  that variable is unset and the default socket exists when vLLM starts. `ULLAGE_SOCKET=` is off;
* the only file that imports vllm, and nothing else beyond the standard library.

vLLM makes one logger per engine in every API process, when the engines are ready. Each step's
scheduler stats reach one of the API processes; an idle engine has no steps. So each logger is a
sender of its own, and a thread repeats who it is and its last step every `HEARTBEAT_S`.
"""

import logging
import os
import secrets
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any, Final

import vllm
import vllm.v1.engine
from vllm.v1.metrics.loggers import StatLoggerBase

from ullage_sidecar.channel import DEFAULT_SOCKET, Sender, encode_hello, with_totals
from ullage_sidecar.identity import Identity
from ullage_sidecar.stats import StepEncoder

HEARTBEAT_S: Final = 1.0
RETRY_S: Final = 0.1
"""The next heartbeat comes sooner if the last one found the sidecar's queue full."""
NOTES_LIMIT: Final = 8
_PATH_LIMIT: Final = 107  # bytes in a unix socket's address
_NAME_LIMIT: Final = 200

_log = logging.getLogger("vllm.ullage")


class UllageStatLogger(StatLoggerBase):  # type: ignore[misc]  # vllm is untyped
    """One engine's stat logger. Created, and `record` called, by vLLM."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._encoder: StepEncoder | None = None  # None: inert
        self._last_step: bytes | None = None
        self._noted: set[str] = set()
        name = os.environ.get("ULLAGE_ENGINE") or "vllm"
        path = _socket_path(os.environ)
        if path is None:
            _log.info("Ullage: off: %s", _why_nowhere(os.environ))
            return
        if not _usable(path, name):
            return
        sender_id = secrets.randbits(63)
        self._sender = Sender(path)
        self._identity = Identity(
            sender_id,
            name,
            vllm_config,
            engine_index,
            vllm_version=getattr(vllm, "__version__", None),
            sums_own_engines=hasattr(vllm.v1.engine, "EngineCoreReadyResponse"),  # since 0.20
        )
        stop = threading.Event()
        weakref.finalize(self, stop.set).atexit = False
        heart = threading.Thread(
            target=_beat, args=(weakref.ref(self), self._sender, stop), name="ullage", daemon=True
        )
        try:
            heart.start()
        except RuntimeError as error:
            _log.warning("Ullage: no readings, for want of a thread: %s", error)
            return
        self._encoder = StepEncoder(sender_id)
        _silence_in_forks(self)
        _log.info("Ullage: engine %d of %r is to report to %s", engine_index, name, path)

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,  # noqa: ARG002 (vLLM passes it by name)
        engine_idx: int = 0,  # noqa: ARG002 (the index this logger was made for)
    ) -> None:
        """Send one engine step, or count the tokens of one whose stats went elsewhere."""
        encoder = self._encoder
        if encoder is None:
            return
        try:
            if scheduler_stats is None:
                encoder.count(iteration_stats)
            else:
                step = encoder.step(scheduler_stats, iteration_stats, time.monotonic())
                self._last_step = step
                self._sender.send(step)
        # The one blanket catch of the tree: what escapes from here ends the server, and the
        # host's life is worth more than our reading.
        except Exception as error:  # noqa: BLE001
            self._note(f"a step was not reported: {type(error).__name__}")

    def log_engine_initialized(self) -> None:
        """Nothing: vLLM makes its loggers when the engines are ready."""

    def tell(self) -> bool:
        """Repeat who we are and how we stand, if somebody listens. For the heartbeat.

        False: somebody does, and had no room.
        """
        if not self._sender.connect():
            if self._sender.forbidden:
                self._note(f"may not write to {self._sender.path}")
            return True
        encoder = self._encoder
        hello = self._identity.hello(encoder.unstepped if encoder else 0, self._sender.dropped)
        datagrams = encode_hello(hello)
        if encoder is not None and (step := self._last_step) is not None:
            datagrams += with_totals(step, encoder.totals)
        return self._sender.offer(datagrams)

    def _note(self, trouble: str) -> None:
        if trouble not in self._noted and len(self._noted) < NOTES_LIMIT:
            self._noted.add(trouble)
            _log.warning("Ullage: %s", trouble)


def _beat(
    logger_ref: "weakref.ref[UllageStatLogger]", sender: Sender, stop: threading.Event
) -> None:
    """Tell until vLLM lets go of the logger. The thread's body; holds the logger only to tell."""
    while (logger := logger_ref()) is not None:
        told = logger.tell()
        del logger
        stop.wait(HEARTBEAT_S if told else RETRY_S)
    sender.close()


def _silence_in_forks(logger: UllageStatLogger) -> None:
    """Make the logger inert in a child process: one sender speaks from one process."""
    logger_ref = weakref.ref(logger)

    def silence() -> None:
        if (copy := logger_ref()) is not None:
            copy._encoder = None

    os.register_at_fork(after_in_child=silence)


def _socket_path(environ: Mapping[str, str]) -> str | None:
    """Where a sidecar is expected to listen; None: nowhere."""
    path = environ.get("ULLAGE_SOCKET")
    if path is None:  # os.path's, for Path's raises where it may not look
        return DEFAULT_SOCKET if os.path.exists(DEFAULT_SOCKET) else None  # noqa: PTH110
    return path or None


def _why_nowhere(environ: Mapping[str, str]) -> str:
    if "ULLAGE_SOCKET" in environ:
        return "ULLAGE_SOCKET is empty"
    return f"no ULLAGE_SOCKET is set, and no {DEFAULT_SOCKET} is there"


def _usable(path: str, name: str) -> bool:
    path_bytes = len(os.fsencode(path))
    if path_bytes > _PATH_LIMIT:
        wanted = f"ULLAGE_SOCKET of {path_bytes} bytes, wanted at most {_PATH_LIMIT}"
    elif len(name) > _NAME_LIMIT:
        wanted = f"ULLAGE_ENGINE of {len(name)} characters, wanted at most {_NAME_LIMIT}"
    else:
        return True
    _log.warning("Ullage: no readings: %s", wanted)
    return False
