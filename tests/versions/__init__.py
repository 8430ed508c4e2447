"""The plugin in other versions of vLLM than the one that the tests run on."""
