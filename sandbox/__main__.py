"""Owns starting the launcher from a unit file: `python -IS FOLDER/sandbox`.
May touch the import path, which -I and -S have left with the standard library alone.
Never lets a module of this folder stand for one of the standard library.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    os.environ.clear()
    from sandbox.launcher import main

    main()
