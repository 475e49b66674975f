"""What speculation costs and yields, as arithmetic: break-even, what-if, the plan, recorded figures.

Knows nothing of samples and servers.
"""
