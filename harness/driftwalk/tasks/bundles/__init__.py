"""One layer of a run in a folder of its own, to be run again anywhere: extraction.py."""
