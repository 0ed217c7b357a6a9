"""The command ``pgstudies``, the same as ``python -m pgapps``."""

from __future__ import annotations

import os


def main() -> None:
    """Run the command line, whose imports take so long that Ctrl-C may come before its own end."""
    try:
        from .cli import main as run  # noqa: PLC0415
    except KeyboardInterrupt:
        os._exit(130)  # nothing has begun, and modules that are half imported may complain
    run()


if __name__ == "__main__":
    main()
