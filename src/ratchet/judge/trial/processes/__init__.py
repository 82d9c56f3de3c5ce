"""The processes of a trial as the judge drives them.

candidate, launches  a candidate's process in its sandbox, and all of them over a verdict
building, built_extensions  its compiler, and what it built as it was loaded
reference, rivals    the trusted worker, and starts of the reference to be timed
"""
