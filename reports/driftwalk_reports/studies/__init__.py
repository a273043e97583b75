"""Reports of the studies; each a pure function of a study's result."""
