"""``python -m gpusim.cli``, as bin/gpusim starts it."""

import sys

from gpusim.cli.main import main

sys.exit(main())
