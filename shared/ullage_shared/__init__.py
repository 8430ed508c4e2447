"""What sidecar and router have in common: the snapshot on the wire, configuration, addresses."""
