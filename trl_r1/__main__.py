"""`python -m trl_r1` is `trl-r1`."""

import sys

from trl_r1.cli import main

if __name__ == "__main__":
    sys.exit(main())
