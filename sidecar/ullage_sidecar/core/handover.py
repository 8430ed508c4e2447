"""Two sources may speak for one engine: the plugin in its server, or we who read its `/metrics`.

Law
* While the plugin speaks, what was scraped is not heard: it is older and coarser.
* Both may speak of the same incarnation under different names (`boot_id`), for neither can see what
  the other calls it. It is the same one if it began to serve before the other source last spoke of
  the engine: no server begins while another holds its port. The first name stays.
* A scrape does not tell all that a plugin does. What the incarnation is known to be, it stays.
* Both count the same events from their own beginnings, so after a handover the first reading of a
  sender is only the baseline: see counts.py.
"""

from dataclasses import replace

from ullage_sidecar.core.reading import SCRAPE, Hello


def is_unheard(hello: Hello, present: Hello, *, silent: bool) -> bool:
    """Does the plugin, not `silent`, speak for the engine that this scraped hello is about?"""
    return hello.source == SCRAPE and present.source != SCRAPE and not silent


def is_same(started_s: float, heard_s: float | None) -> bool:
    """Is what began to serve at `started_s` what the other source spoke of at `heard_s`?"""
    return heard_s is not None and started_s <= heard_s


def completed(hello: Hello, present: Hello) -> Hello:
    """A scraped hello with what else is known of its incarnation."""
    if hello.source != SCRAPE:
        return hello
    return replace(
        hello,
        pid=present.pid or hello.pid,
        data_parallel_size=max(present.data_parallel_size, hello.data_parallel_size),
        models=present.models or hello.models,
        total_blocks=present.total_blocks or hello.total_blocks,
        block_size=present.block_size or hello.block_size,
        max_num_seqs=present.max_num_seqs or hello.max_num_seqs,
        max_num_batched_tokens=present.max_num_batched_tokens,
        max_model_len=present.max_model_len,
        vllm_version=present.vllm_version,
    )
