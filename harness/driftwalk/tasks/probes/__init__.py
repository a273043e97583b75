"""Many probes in one run, what of the model they cover, and the probe that shows most.

entries         a set as it is read: a folder, a file of lines, a list; one probe at a time
collecting      the reports of a set, as they come in: rows, percentiles, the worst
run             a set verified: model and backends opened once
suggesting      a small set that covers most of a model, as a file
"""
