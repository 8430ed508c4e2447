"""The live twin: a whole vLLM server whose GPU is only modelled."""
