"""The program of a wrapper on standby: see `standby`. Short for the same reason as
`guardian_program`.
"""

import os
import sys

# This process is started without the folders of installed packages.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from holdfast.processes.standby import main

if __name__ == "__main__":
    main(sys.argv[1:])
