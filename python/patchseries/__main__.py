"""`python -m patchseries`."""

import sys

try:
    from patchseries.cli import main
except ModuleNotFoundError as error:
    if error.name != "unidiff":
        raise
    sys.exit(
        f"patchseries: {sys.executable} lacks the package unidiff; "
        "type: make setup, then build/venv/bin/python -m patchseries (or: pip install unidiff)"
    )

if __name__ == "__main__":
    sys.exit(main())
