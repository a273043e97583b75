"""What driftwalk does beside a verification; each task is a package that may know all rooms.

constants.py   every tuned number that a task's verdict or a named cause depends on
"""
