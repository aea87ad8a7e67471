"""``python -m gpusim.cli``, as bin/gpusim starts it."""

import sys

from gpusim.cli import main

if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # while the command line is read
        sys.exit(130)
