"""The making of batches on the host, from the specification to the assembled batch."""
