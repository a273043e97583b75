"""One model at several shapes of input: is what was compiled or exported right at all of them?

shape           rows by length: as a user writes them, or those that are worth a try
run             a report for each shape and candidate; each backend is made once
"""
