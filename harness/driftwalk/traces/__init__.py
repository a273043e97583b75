"""Traces as files.

trace_file.py    a folder: states and a manifest, hashed, written atomically
tensor_file.py   safetensors, read with suspicion
spill.py         a trace that does not fit into memory
point_map.py     the points of a port, by other names
"""
