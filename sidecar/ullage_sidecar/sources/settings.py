"""Whether and how often servers' own `/metrics` are read."""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta


class When(StrEnum):
    """Whether servers are scraped."""

    AUTO = "auto"
    """While the plugin is not heard."""
    NEVER = "never"


class ScrapeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table `[scrape]`."""

    when: Annotated[
        When,
        Meta(
            description="`auto`: read a server's own `/metrics` while its plugin is not heard; "
            "`never`: do not."
        ),
    ] = When.AUTO
    interval_s: Annotated[
        float,
        Meta(
            ge=0.1,
            le=2.0,
            description="Seconds between two `GET /metrics` of a server. Each costs vLLM 5 to 8 ms "
            "for every engine, on the thread that streams its tokens.",
        ),
    ] = 1.0
    timeout_s: Annotated[
        float, Meta(ge=0.05, le=60.0, description="Seconds to wait for the whole page.")
    ] = 2.0
