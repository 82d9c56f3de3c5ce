"""Screening: quick estimates of which kernels are worth a verdict, never a proof.

screener   what a judge keeps from one screening to the next
groups     one screening, group by group
rounds     a group timed together
entrant    one candidate: its time limits and its answer
"""
