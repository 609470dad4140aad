"""The foundation of all other folders: CPUs, processes, threads, memory, durable files, clocks, sizes, shared types.

No module here knows what a dataset is.
"""
