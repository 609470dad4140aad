"""How one batch is made on the host."""
