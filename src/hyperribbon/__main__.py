"""Run the command line with `python -m hyperribbon`."""

from hyperribbon.application.cli import main

if __name__ == "__main__":
    main()
