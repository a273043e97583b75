"""Reports: a result in, a text out. Nothing here runs a model, reads a clock or touches a file."""
