"""All that knows ExecuTorch programs (`.pte`).

lowering   a torch model to two programs: with all states as outputs, and as it would be shipped
program    a program loaded and run; what the runtime prints becomes part of an error
trial      the same in a process of its own, for programs that might end the process
backend    `executorch`: driftwalk's own programs
file       `executorch,file=m.pte`: a program that others made, compared at its outputs
"""
