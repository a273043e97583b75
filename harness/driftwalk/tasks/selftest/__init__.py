"""The selftest: known bugs put into copies of a model; does the gate catch them?

run.py      plants each fault and judges it
result.py   the report, frozen
"""
