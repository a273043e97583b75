"""Many jobs on many machines: who runs what, what came back, and which node stands alone."""
