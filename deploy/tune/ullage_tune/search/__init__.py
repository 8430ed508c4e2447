"""`ullage-tune search`: the settings of what ships that serve given workloads best."""
