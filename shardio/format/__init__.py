"""What stands on disk: fields, images, checksums, the manifest and its table of shards."""
