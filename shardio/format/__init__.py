"""The format on disk: fields, image headers, checksums, the manifest and its table of shards."""
