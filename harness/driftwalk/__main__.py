"""`python -m driftwalk`."""

from driftwalk.cli import main

if __name__ == "__main__":
    main()
