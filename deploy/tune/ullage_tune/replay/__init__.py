"""`ullage-tune replay`: a workload, played against a running server or router."""
