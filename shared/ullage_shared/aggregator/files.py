"""What the files hold that the aggregator's configuration names, read and checked whole."""

import ssl
from typing import NamedTuple

from ullage_shared.admission import Admission
from ullage_shared.admission import read as read_admission
from ullage_shared.aggregator.config import Config
from ullage_shared.config import at_once
from ullage_shared.secret import Secret, own
from ullage_shared.tls import trusting


class Files(NamedTuple):
    """All of them."""

    admission: Admission
    """Of routers."""
    peers: ssl.SSLContext
    """For connections to sidecars at `https://`."""
    sidecar_token: Secret | None
    """What to ask sidecars with."""


def read(config: Config) -> Files:
    """Read them. Raises `ConfigError`, with all that is wrong."""
    tls, access = config.tls, config.access
    with at_once() as each:
        with each():
            admission = read_admission(access, tls)
        with each():
            peers = trusting("tls.ca", tls.ca, tls.client_certificate, tls.client_key)
        with each():
            sidecar_token = own("access.sidecar_token", access.sidecar_token)
    return Files(admission, peers, sidecar_token)
