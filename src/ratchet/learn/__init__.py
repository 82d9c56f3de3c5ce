"""Learn: an author trained on the judge's verdicts.

`corpus` collects what to learn from, `models` and `tokens` what learns, `languages` what it writes.
`training` is one loop for pretraining, SFT and GRPO, with replay and `forgetting`. `bench` is the
judge as a source of rewards. `policy` makes the trained model an author, `serve` an endpoint, and
`loop` trains it again on what the authors found. Importing this package does not import torch.
"""
