"""`driftwalk repair`: which parts of a quantised model to leave in float, so that it costs less.

search          the fewest parts that reach a goal, by measuring, one run each; knows no model
result          what was found, frozen
words           the parts in the words of the tool that quantises
run             a model, its quantised candidate and a probe; measures, searches, makes it anew
"""
