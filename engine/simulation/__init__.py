"""The same machines under a seeded scheduler, a virtual clock, and a network and storage that fail on purpose. No threads, and no machine of its own."""
