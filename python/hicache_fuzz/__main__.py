"""``python -m hicache_fuzz``."""

import sys

from hicache_fuzz.cli import main

if __name__ == "__main__":
    sys.exit(main())
