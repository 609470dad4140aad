"""The entry point of the command `shardio`. It is outside of the package, whose import takes a good part of a second.

An interrupt has to end the command then as it does later.
"""

import sys


def main() -> None:
    """Run the command line; an interrupt ends it with exit code 130, whenever it comes."""
    try:
        from shardio.cli import main as run

        run()
    except KeyboardInterrupt:
        print("shardio: interrupted", file=sys.stderr)
        sys.exit(130)
