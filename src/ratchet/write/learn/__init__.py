"""Learn: an author trained on the judge's verdicts.

`corpus` collects what to learn from, `models` loads and saves what learns, `languages` says what it
writes. `training` is one loop for pretraining, SFT and GRPO (`objectives`), with replay against
forgetting. `bench` is the judge as a source of rewards. `policy` makes the trained model an author,
and `loop` trains it again on what the authors found. Importing this package does not import torch.
"""
