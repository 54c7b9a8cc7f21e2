"""`python -m proof.mutation`: see runner.py."""

import sys

from proof.mutation.runner import main

sys.exit(main(sys.argv[1:]))
