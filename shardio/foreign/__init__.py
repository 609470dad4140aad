"""Files that other programs wrote: found, told apart by their content, and scanned for where each record is.

Converters copy the records into shards; an index of their locations lets shardio read the files where they lie. Nothing
in a file is trusted: offsets are checked before they are used, names never become paths, and nothing is unpickled.
"""
