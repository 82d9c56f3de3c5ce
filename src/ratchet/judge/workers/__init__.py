"""Programs that the judge starts in processes of their own, and the memory that they share.

zygote, zygote_cpp  what is forked in a candidate's sandbox
candidate       what runs a candidate, in the sandbox
reference       the trusted worker: it draws inputs and knows the answers
rival           the reference, timed as a candidate is
gate            is the problem sound: trivial answers, repeats, rounding
alike, variants inputs that repeat others' but for a little; known mistakes, named
device, driver_memory, shared_batch  a batch's memory, on the cores or on a GPU
arm             whole training steps

The judge itself imports only `driver_memory` from here, and data about the programs.
"""
