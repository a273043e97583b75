"""Many probes in one run, what of the model they cover, and the probe that shows most.

entries         a set as it is read: a folder, a file of lines, a list; one probe at a time
collecting      the reports of a set, as they come in: rows, percentiles, the worst
run             a set verified: model and backends opened once
together        the sides' runs on several probes, one side after the other
screening       most probes of a large set: both sides run once, what is unusual is judged whole
mutation        one probe made of another, and simpler forms of one
corpus          what a search keeps between runs
looks           many inputs in one run of each side, without a truth
weighing        a probe of a search judged as ever, or many of them looked at
search          the worst input
suggesting      a small set that covers most of a model, as a file
"""
