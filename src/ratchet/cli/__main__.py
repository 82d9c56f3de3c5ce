"""Entry point of `python -m ratchet.cli`."""

import sys

from ratchet.cli import main

sys.exit(main())
