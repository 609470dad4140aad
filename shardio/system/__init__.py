"""What the operating system gives: processors, threads, processes, memory, durable writes, clocks."""
