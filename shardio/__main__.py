"""`python -m shardio`: the command line, as `shardio` runs it."""

from shardio_command import main

if __name__ == "__main__":
    main()
