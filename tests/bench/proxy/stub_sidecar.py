"""A stub of Ullage's sidecar: `stub_sidecar.py PORT URL…` publishes a live snapshot of each URL.

Every GET renders a new document, as if each engine had just made a step: `seq` grows with time,
`age_s` is that of the last step, and scores drift, so that a router that polls it has the work that
live snapshots bring. The numbers say that every replica has room; they are not measured.
"""

import math
import sys
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ullage_shared.snapshot import PATH, SCHEMA, Document, Snapshot, State, encode

STEP_S = 0.010
TOTAL_BLOCKS = 1_000_000  # Room for prompts of 220 KB, too.
MAX_NUM_SEQS = 256


def snapshot(url: str, index: int, uptime_s: float, wall_s: float) -> Snapshot:
    """What a healthy replica would say `uptime_s` after its start."""
    steps = int(uptime_s / STEP_S)
    free = 0.8 + 0.1 * math.sin(uptime_s + index)
    running = int(MAX_NUM_SEQS * (1 - free))
    return Snapshot(
        id=f"stub/{index}",
        url=url,
        dp_rank=None,
        models=("tiny",),
        state=State.SERVING,
        reason="",
        capacity_score=round(free, 4),
        free_block_ratio=round(free, 4),
        waiting_depth=0.0,
        running_ratio=running / MAX_NUM_SEQS,
        free_blocks=int(TOTAL_BLOCKS * free),
        total_blocks=TOTAL_BLOCKS,
        block_size=16,
        running=running,
        max_num_seqs=MAX_NUM_SEQS,
        waiting=0,
        exhaustion_s=None,
        boot_id=f"stub-{index}",
        seq=steps,
        age_s=round(uptime_s - steps * STEP_S, 6),
        ts=wall_s,
    )


class _Handler(BaseHTTPRequestHandler):
    """Answers `GET /v1/snapshots`, keep-alive."""

    protocol_version = "HTTP/1.1"
    urls: Sequence[str] = ()
    began_s = time.monotonic()

    def do_GET(self) -> None:
        """Render the document of this moment; anything else is not here."""
        if self.path.partition("?")[0] != PATH:
            self.send_error(404)
            return
        uptime_s, wall_s = time.monotonic() - self.began_s, time.time()
        replicas = tuple(snapshot(u, i, uptime_s, wall_s) for i, u in enumerate(self.urls))
        body = encode(Document(schema=SCHEMA, node="stub", replicas=replicas))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{int(uptime_s / STEP_S)}"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing per request."""


if __name__ == "__main__":
    _Handler.urls = sys.argv[2:]
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), _Handler).serve_forever()
