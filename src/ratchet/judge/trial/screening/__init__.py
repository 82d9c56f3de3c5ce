"""Screening: which of many kernels are worth a verdict? Quick estimates, and never a proof.

screener   what a judge keeps from one screening to the next
run        one screening, group by group
rounds     a group timed together
entrant    one candidate, and what is known of it
limits     how long a candidate may take
"""
