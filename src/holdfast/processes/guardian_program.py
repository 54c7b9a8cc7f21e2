"""The program of a guardian: see `guardian`.

Python compiles the file it is started with at every start, and caches only imported modules. So
this file is short, which saves 2 ms and more for each command.
"""

import os
import sys

# This process is started without the folders of installed packages.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from holdfast.processes.guardian import main

if __name__ == "__main__":
    main(sys.argv[1:])
