"""What a quantised candidate's format may cost, where somebody says so.

limits          the user's limits, and the verdict of a report that is beyond one
"""
