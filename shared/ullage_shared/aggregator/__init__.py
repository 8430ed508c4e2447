"""Between many sidecars and their routers: hears all of them, and publishes as one."""
