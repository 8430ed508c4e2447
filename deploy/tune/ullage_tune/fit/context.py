"""Context: the tokens that the running sequences hold, each for itself.

A plugin tells how many KV blocks are in use. That is the context, but for half an empty block at
the end of each sequence, and but for blocks that several sequences share: those are in use once,
and attention reads them for each.

    context = tokens in blocks in use - half a block · sequences + shared
    shared' = shared · (1 - ended / (sequences - 1)) + what those who begin share

Who begins shares what it found in the prefix cache, less what that added to the blocks in use (it
was only kept until then). This is measured where it can be, for those that begin and finish their
prompt in one step while nobody ends, and is the usual amount, their median, elsewhere; always with
asynchronous scheduling, where it is not seen whether somebody ended. Who ends takes the mean with
it: of `n` that share one prefix, `n - 1` have it beyond the first.

How good it is: exact where nothing is found in the cache. Else the sum is a few per cent off (up to
20 % where many different prefixes are shared), so that seconds per sequence and per token of
context are told apart less well than they seem: what one loses the other has. Of a prompt that is
computed over several steps all that it shares is counted from the first on.
"""

from collections.abc import Sequence
from statistics import median

from ullage_tune.fit.steps import Step


def with_context(steps: Sequence[Step], lead: int, half_block: float) -> tuple[Step, ...]:
    """The same, with `held` as context. `lead`: see `rows`. `half_block`: in tokens."""
    bare = [s._replace(held=max(0.0, s.held - half_block * s.running)) for s in steps]
    measured = [_shared(bare, number, lead) for number in range(len(bare))]
    known = [each for each in measured if each is not None]
    usual = median(known) if known else 0.0
    counted, shared = bare[:1], 0.0
    for number in range(1, len(bare)):
        before, now = bare[number - 1], bare[number]
        took_part = now.generated - before.generated
        ended = min(max(took_part - now.running, 0), max(took_part - 1, 1))
        shared *= 1.0 - ended / max(took_part - 1, 1)
        found = now.found - before.found
        of_each = measured[number]
        if of_each is None or lead:
            of_each = usual
        begun = max(1, now.running - before.running + ended)
        shared = shared + min(of_each * begun, found) if now.running > 1 else 0.0
        counted.append(now._replace(held=now.held + shared))
    return tuple(counted)


def _shared(steps: Sequence[Step], number: int, lead: int) -> float | None:
    """Tokens that each of those who begin here shares; `None`: it cannot be measured."""
    if not 0 < number < len(steps) - lead:
        return None
    before, now = steps[number - 1], steps[number]
    found, looked_up = now.found - before.found, now.looked_up - before.looked_up
    begun = now.running - before.running
    finished = steps[number + lead].prompts - steps[number + lead - 1].prompts
    if not found or begun < 1 or finished != looked_up or now.number != before.number + 1:
        return None
    if not lead and now.generated - before.generated != now.running:
        return None  # Somebody ended.
    added = now.held - before.held - before.running
    return min(max(looked_up - added, 0.0), found) / begun
