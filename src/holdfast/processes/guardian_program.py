"""The program of a guardian: see `guardian`.

Python compiles the file that it is started with anew each time, and keeps only what is imported. So
this file is short: it saves each command 2 ms and more.
"""

import os
import sys

# This process is started without the folders of installed packages.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from holdfast.processes.guardian import main

if __name__ == "__main__":
    main(sys.argv[1:])
