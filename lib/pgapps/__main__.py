"""``python -m pgapps``, the same as the command ``pgstudies``."""

from .cli import main

if __name__ == "__main__":
    main()
