"""The CLEVR study of the paper's Appendix F, from the rows that `recipes/clevr.py` leaves.

rows     what a row is, and reading it
tables   ours beside the paper's, lengths against objects, trials beside the paper's curriculum
figures  mean length by the number of objects, R² by length
page     all of it, as part of a report
"""
