"""``python -m hicache_bench``."""

import sys

from hicache_bench.cli import main

if __name__ == "__main__":
    sys.exit(main())
