"""Every event that the router logs, and what it means to whoever reads the log."""

from collections.abc import Mapping
from typing import Final

EVENTS: Final[Mapping[str, str]] = {
    "listening": "It serves: at `http` for clients, at `admin` for operators.",
    "stopping": "It was told to stop: what runs may finish.",
    "still_stopping": "Every 5 s: so many connections are still open.",
    "cut_by_stop": "The grace is over: so many connections are ended.",
    "stopped": "It has ended.",
    "cannot_listen": "A port cannot be had, and it ends.",
    "reloaded": "SIGHUP: the file was read again; `changed` names the keys.",
    "reload_refused": "SIGHUP: the file or a certificate is at fault; nothing has changed.",
    "replica_joined": "A replica is in the fleet.",
    "replica_left": "A replica is no longer in the fleet; it finishes its `requests`.",
    "replica_finished": "A replica that had left has answered its last request.",
    "replica_state": "A replica's sidecar says that it is in another state now, and `why`; "
    "`stalled` is one that has work and has made no step for a while.",
    "replica_failing": "A replica gave no answer; told once, until it answers.",
    "replica_answers": "A replica that was failing answers again.",
    "replica_ejected": "A replica failed again and again: it is left out until it answers a probe.",
    "replica_returns": "An ejected replica answered, and comes back with a growing share.",
    "answer_cut": "A replica broke off in the midst of an answer; one line in 10 s.",
    "models_unknown": "A server does not say which models it serves: it gets requests for any.",
    "overload_began": "No replica has headroom: requests wait, or get 503.",
    "overload_ended": "Requests go at once again; so many waited and were refused.",
    "out_of_descriptors": "The router has no file descriptors left: raise `ulimit -n`.",
    "handshake_failed": "A client's TLS handshake did not succeed.",
    "request": "With `access_log`: a request has ended. `end`: `whole`, `cut` (its replica broke "
    "off), `client_gone`, `stopped`, or the code of the router's own answer.",
    "worker_ready": "A worker serves.",
    "worker_died": "A worker has ended unasked, and is started again.",
    "worker_hung": "With systemd's watchdog: a worker answers no more, and is ended.",
    "worker_killed": "A worker did not stop in time.",
    "no_worker_starts": "No worker could begin, and the router ends.",
    "supervisor_gone": "A worker's supervisor has died: the worker finishes what it has.",
    "probe_broken": "A fault of the router's own: please report it.",
}
