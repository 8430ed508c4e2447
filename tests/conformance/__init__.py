"""What a proxy before vLLM promises, as a table; checked on ours, and on its peers."""
