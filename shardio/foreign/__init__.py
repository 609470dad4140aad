"""Files that other programs wrote: found, identified by their content, and scanned for the location of each record.

Converters copy the records into shards; an index of their locations lets shardio read the files in place. Nothing
in a file is trusted: offsets are checked before they are used, names never become paths, and nothing is unpickled.
"""
