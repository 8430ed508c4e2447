"""For tests of what is deployed with real vLLM servers."""

from vllm_built import tiny_model, vllm_venv

__all__ = ["tiny_model", "vllm_venv"]
