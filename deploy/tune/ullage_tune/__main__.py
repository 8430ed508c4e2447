"""`ullage-tune`."""


def main() -> None:
    """Run the command."""
    raise SystemExit("ullage-tune: nothing to run yet")


if __name__ == "__main__":
    main()
