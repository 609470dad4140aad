"""Sources of samples in common formats; shardio finds them through the entry-point group `shardio.converters`."""
