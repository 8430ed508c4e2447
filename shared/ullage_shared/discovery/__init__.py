"""Who there is to ask: lists of servers that may change while a process runs."""
