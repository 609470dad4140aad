"""`shardio`, or `python -m shardio`: the command line.

Importing it takes a good part of a second, in which an interrupt has to end the command as it does later.
"""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line; an interrupt ends it with exit code 130, whenever it comes."""
    try:
        from .cli import main as run

        run()
    except KeyboardInterrupt:
        print("shardio: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
