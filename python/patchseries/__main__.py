"""`python -m patchseries`."""

import sys

from patchseries.cli import main

if __name__ == "__main__":
    sys.exit(main())
