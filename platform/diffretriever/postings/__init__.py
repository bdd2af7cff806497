"""An inverted index over impacts: the exact sparse search at scale (Eq. 3 of arXiv 2605.07210).

`segment.PostingsSegment` writes and opens the index of one group of passages; `search.search` ranks the passages of
several. What is found, and with which scores, is what the product of `scoring.sparse` finds. Import the leaf modules.
"""
