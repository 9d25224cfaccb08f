"""Other servers' suites and chat templates, run against this one by the same method each time.

Their folders are not part of the project: each runner takes the path of one.
"""
