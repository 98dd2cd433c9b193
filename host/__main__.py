"""``python -m host`` is ``ors-host``."""

from host.cli import main

if __name__ == "__main__":
    main()
