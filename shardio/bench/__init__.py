"""The bench: measures how fast each rank is fed, names what limits it, and which setting to change."""
