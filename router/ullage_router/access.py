"""The access log: one line for each request, when it has ended.

    request id=… client=10.0.0.7 method=POST path=/v1/chat/completions model=m replica=gpu-01/a
    why=wait status=200 end=whole tries=1 waited_s=0 ttft_s=0.041 duration_s=1.7 sent_bytes=5120
    trace_id=…

`client` is the address that the connection came from. `end` says how: `whole`, `cut`,
`client_gone`, `stopped`, or the code of the router's refusal. What is not known is left out. No
line holds a header, a query or anything of a body but its model.
"""

from collections.abc import Callable

from ullage_router.http.message import Request
from ullage_router.http.story import Story
from ullage_shared.log import Line, line


class AccessLog:
    """Writes them. Never waits, if `put` does not."""

    def __init__(self, put: Callable[[Line], None]) -> None:
        self._put = put

    def begins(self, _: Story, __: Request | None) -> Callable[[Story], None]:
        """Only its end is told."""
        return self._tell

    def _tell(self, story: Story) -> None:
        self._put(access_line(story))


def access_line(story: Story) -> Line:
    """The line about a request."""
    return line(
        "request",
        id=story.request_id,
        client=story.client,
        method=story.method,
        path=story.path,
        model=story.model,
        replica=story.replica,
        why=story.why,
        status=story.status,
        end=story.end,
        tries=story.tries,
        waited_s=_ms(story.waited_s),
        ttft_s=_ms(story.ttft_s),
        duration_s=_ms(story.duration_s),
        sent_bytes=story.sent_bytes,
        trace_id=story.trace_id,
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
