"""Studies of hidden states: does this drift matter? Each module is one study, or one tool of it."""
