"""`driftwalk reduce`: the smallest thing that still shows a drift, as a script for an issue.

search          fewer parts, shorter axes, plainer values: by asking; knows no model
result          what was found, frozen
run             a model, a candidate that drifts and a probe; or a result that was stored
"""
