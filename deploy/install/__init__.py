"""`make install` and `make uninstall`: Ullage on a host, with its units."""
