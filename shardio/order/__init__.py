"""The order of samples and their distribution over ranks: pure functions without I/O."""
