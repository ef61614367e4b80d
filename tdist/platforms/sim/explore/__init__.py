"""Running a world again without its hosts, and running it on every inequivalent schedule."""
