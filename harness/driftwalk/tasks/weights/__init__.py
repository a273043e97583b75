"""Two named sets of weights, compared one by one.

blocks      large arrays, a part at a time
compare     two arrays: equal, cast, and else what kind of difference, by how much, and where
order       a permutation, found and put into words
pairing     which weight of one side is which of the other: by name, else by content
run         `driftwalk weights A B`
cause       what `verify` adds to a drift report: whether a weight is the cause
result      the outcome, frozen
"""
