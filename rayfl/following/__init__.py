"""Following runs from outside, using only their folders: the list, the live view, exports to other tools.

Nothing here trains or imports torch, and nothing is written to a run's folder.
"""
