"""The real scheduler, router, buffer, publisher and loop on virtual time, with engines that only take time."""
