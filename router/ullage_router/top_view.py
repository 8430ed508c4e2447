"""What `ullage-router top` says of the router as a whole, as lines of text: pure."""

from collections import Counter
from typing import Final

from ullage_router.looks import Since
from ullage_router.top_table import Line, number
from ullage_shared.address import Address
from ullage_shared.plain import plain

_FEW: Final = 3
"""Sidecars with a problem that are named."""
_MOODS: Final = {
    "bad": ("gets nothing", "get nothing"),
    "mild": ("is not what it should be", "are not what they should be"),
}
"""What is said of one replica, and of several."""


def head(since: Since, admin: Address, clock: str) -> list[Line]:
    """What holds for the whole router."""
    page, queue = since.page, since.page["queue"]
    workers = f", {len(page['workers'])} workers" if "workers" in page else ""
    scores = [r["capacity_score"] for r in page["replicas"] if r["capacity_score"] is not None]
    mean = number(sum(scores) / len(scores) if scores else None)
    first = " ".join(number(since.ttft_of_all_s(q)) for q in (0.5, 0.9))
    flight = sum(row["in_flight"] for row in page["replicas"])
    state = page["overload"]["state"]
    waits = f"{queue['length']}/{queue['max_requests']}"
    oldest = "" if queue["oldest_s"] is None else f" ({number(queue['oldest_s'])} s)"
    name = f"ullage-router {plain(page['version'])} at {admin}{workers}"
    return [
        Line(f"{name}, up {span(page['uptime_s'])}, {plain(page['way'])}  {clock}".rstrip()),
        Line(
            f"sent/s {number(since.sent_per_s, 1)}  flight {flight}  clients {page['clients']}  "
            f"first byte s {first}  mean score {mean}"
        ),
        Line(
            f"gate {plain(state)}  waiting {waits}{oldest}  refused {since.grown('refusals')}  "
            f"second tries {since.grown('second_tries')}  in {since.s:.0f} s",
            "" if state == "open" else "bad",
        ),
    ]


def span(seconds: float) -> str:
    """In the largest units that it has."""
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86_400)
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{int(seconds)} s"


def problems(since: Since) -> list[Line]:
    """What is wrong with the whole, a line each."""
    page, replicas = since.page, since.page["replicas"]
    lines = []
    if page["stopping"]:
        lines.append(Line("the router is stopping", "mild"))
    if not replicas:
        lines.append(Line("there is no replica", "bad"))
    if page["overload"]["state"] != "open":
        lines.append(Line("no replica has headroom: it takes more capacity, or less load", "bad"))
    for mood, words in _MOODS.items():
        states = [row["now"] for row in replicas if row["mood"] == mood]
        if states:
            each = ", ".join(f"{count} {now}" for now, count in Counter(states).items())
            said = f"{len(states)} of {len(replicas)} replicas {words[len(states) > 1]}: {each}"
            lines.append(Line(plain(said), mood))
    ill = [sidecar for sidecar in page["sidecars"] if sidecar["problem"]]
    lines += [
        Line(f"sidecar {plain(each['url'])}: {plain(each['problem'])}", "bad")
        for each in ill[:_FEW]
    ]
    if ill[_FEW:]:
        lines.append(Line(f"and {len(ill) - _FEW} more sidecars with a problem", "bad"))
    lines += [
        Line(f"{plain(each['source'])}: {plain(each['problem'])}", "mild")
        for each in page["sources"]
        if each["problem"]
    ]
    if page["routing_by"] == "own_counts" and page["sidecars"]:
        lines.append(Line("no sidecar speaks for any replica: by own counts of requests", "mild"))
    if silent := page.get("workers_silent"):
        lines.append(Line(f"no answer from worker {', '.join(map(str, silent))}", "bad"))
    return lines
