"""The data plane: HTTP/1.1 in, HTTP/1.1 out, bodies untouched."""
