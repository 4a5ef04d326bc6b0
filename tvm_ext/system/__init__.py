"""Files, processes, threads, RPC: what the operating system has a part in."""
