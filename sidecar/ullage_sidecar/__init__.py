"""The sidecar: one per GPU node, it turns vLLM's scheduler stats into scored snapshots."""
