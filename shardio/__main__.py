"""`python -m shardio`: the same as the `shardio` command."""

from .cli import main

if __name__ == "__main__":
    main()
