"""A rolling upgrade over a list of hosts: `python3 deploy/rolling`."""
