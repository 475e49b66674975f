"""How the embedded EAGLE-3 head was made: the target writes prompts and answers, a one-layer head learns to run ahead.

``python -m breakeven.embedded.eagle3_recipe --model DIR --prompts FILE --out DIR`` makes it again on one GPU.
The stages, in order: ``prompts`` (what is asked), ``decode`` (the target writes), ``corpus`` (what is kept),
``packing`` (fixed shapes), ``head`` (the drafter and its training-time test), ``acceptance`` (what it is worth).
"""
