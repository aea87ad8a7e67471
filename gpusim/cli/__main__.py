"""``python -m gpusim.cli``, as bin/gpusim starts it."""

import sys

from gpusim.cli import main

if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # between two commands' parsers
        sys.exit(130)
