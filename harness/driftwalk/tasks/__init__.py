"""What driftwalk does beside a verification; each task is a package that may know all rooms."""
