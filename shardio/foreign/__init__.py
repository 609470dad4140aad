"""Records that others wrote, in files as they are: where each sample is, and how it is read.

Each format has a scan, which finds the places of all samples without reading them, and a decoder of one sample.
Converters copy the samples into shards; an index of the places lets the files be used as they lie. Nothing in the files
is trusted: places are checked before they are read, names are never used as paths, nothing is unpickled.
"""
