"""Faults of porting and of arithmetic, and lies."""
