"""Media that clients send: fetched, read and judged in replica processes, never in an API worker."""
