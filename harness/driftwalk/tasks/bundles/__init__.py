"""One layer of a run in a folder of its own, to be run again anywhere.

extraction.py   chooses and writes it
folder.py       the folder, and what may be written to it
"""
