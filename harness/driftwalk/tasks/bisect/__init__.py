"""`driftwalk bisect`: which switch of a candidate causes its drift, or which of them together.

search          the smallest sets of switches, by asking; knows no model
repeats         one answer of several runs, where runs of one setting disagree
result          what was found, frozen
oracle          a setting as a question: one run of the candidate, judged at one point
environments    the same verification in two environments
run             a model, a candidate that drifts and a probe; asks, searches, says
"""
