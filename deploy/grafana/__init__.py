"""The Grafana dashboard: what it shows (`rows`), and how that becomes JSON (`__main__`)."""
