"""Views: samples chosen, weighed, mixed and concatenated, not rewritten; each is a pure function of an index."""
