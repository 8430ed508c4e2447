"""The router: chooses a replica by what sidecars publish, and forwards the request."""
