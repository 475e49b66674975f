"""From parameters and arms to a server: which machine, what is known beforehand, what a launch proves.

Knows nothing of the order of launches, nor of what their figures mean.
"""
