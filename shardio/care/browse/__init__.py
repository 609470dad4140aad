"""Datasets looked at in a browser: pages on the loopback interface, for whoever has their token."""
