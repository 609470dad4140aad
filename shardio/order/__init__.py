"""Which sample comes when, and on which rank: pure functions, no I/O."""
