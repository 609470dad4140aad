"""Views: samples chosen, weighed, mixed and joined without rewriting them; each is a pure function of an index."""
