"""`python -m procq`: the same as the command `procq`."""

import sys

from procq.cli import console

sys.exit(console())
