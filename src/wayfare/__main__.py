"""`python -m wayfare`."""

import sys

from wayfare.cli import main

if __name__ == "__main__":
    sys.exit(main())
