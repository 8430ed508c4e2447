"""A prompt as KV blocks: how many end in each segment, under a name for the prefix up to there.

    blocks of a segment = ⌊end / block_size⌋ − ⌊begin / block_size⌋

so that they add up to the whole blocks of the prompt; a last block that is not full is none.
Engines and routers name each block by a hash over all tokens up to its end. Here a name covers all
blocks that end in one segment; two prompts have it in common exactly if they are equal up to there.
(A block over the border of two segments goes with the second, as only both make its content.)
"""

from collections.abc import Iterator

from ullage_tune.workload import Request


def chain(request: Request, block_size: int) -> Iterator[tuple[int, int]]:
    """For each segment: the name of the prefix that ends with it, and its blocks (0 or more)."""
    name = end = 0
    for segment in request.prompt:
        begin, end = end, end + segment.tokens
        # The hash of a tuple of integers is the same in every process.
        name = hash((name, *segment))
        yield name, end // block_size - begin // block_size
