"""Readers of formats that other programs write: they locate each sample in its file, and read it.

Each format has a scan, which locates all samples without reading them, and a parser of one sample. Converters copy the
samples into shards; an index of their locations lets shardio read the files where they lie. Nothing in a file is
trusted: offsets are checked before they are used, names never become paths, and nothing is unpickled.
"""
