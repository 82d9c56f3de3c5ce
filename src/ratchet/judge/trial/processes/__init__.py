"""The processes of a trial as the judge drives them.

candidate, launches  a candidate's process in its sandbox, and all of them over a verdict
compiling, compile_pool  libraries: of one kernel, and of many
built_extensions     C++ that a kernel in torch builds as it is loaded
reference, rivals    the trusted worker, and starts of the reference to be timed
"""
