"""`ullage-sidecar`: reads its configuration and runs.

Exit status: 0 after SIGTERM or SIGINT, 1 if a place to listen at cannot be had, 2 if the
configuration is at fault, 130 after a Ctrl-C before it could listen to signals.
"""

from collections.abc import Sequence

import uvloop

from ullage_shared import log
from ullage_shared.config import ConfigError
from ullage_sidecar.cli import flags, parser
from ullage_sidecar.config import read
from ullage_sidecar.serve import serve
from ullage_sidecar.sources.plugin import ListenError


def main(words: Sequence[str]) -> int:
    """Run, as the command line wants it. Returns the exit status."""
    options = parser().parse_args(words)
    try:
        config = read(options.config, flags(options))
        log.configure(options.log_level, options.log_format)
        uvloop.run(serve(config))
    except ConfigError as error:
        log.complain("ullage-sidecar", error.faults)
        return 2
    except ListenError as error:
        log.complain("ullage-sidecar", (str(error),))
        return 1
    return 0
