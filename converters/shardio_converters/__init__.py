"""Converters for common formats. shardio finds them by the entry-point group `shardio.converters`, as it finds others'.

Each public module offers the function of its name, which returns a source; modules with an underscore are helpers.
"""
