"""Generation: where decoding on a cache parts from what the model computes, and by whose doing.

Both sides are fed the tokens that the reference chooses, the prompt at once and then one by one.
The states of all steps, joined, are those of one run on the whole sequence: the float64 run of it
is the truth of every step, and all of judge/ holds as it is.

    prompt.py      the prompt as a probe: rows of unequal length are padded on the left
    feeding.py     how it is fed: in beams, in pieces, with drafted tokens
    sides.py       a backend that can decode, and what it gave
    cells.py       layer by step: what is off where, in units of what is allowed
    choices.py     what each side would say, and where the two part
    patching.py    which layer's drift parts them
    paths.py       each side's decoding against its own run on the whole sequence
    invariance.py  what deployments change, and should not matter
    cause.py       the cache, the backend, or what all layers share
    run.py         puts it together
    recording.py   a decoding as a trace: to be compared elsewhere, or with what is elsewhere
    result.py      what comes of it
"""
