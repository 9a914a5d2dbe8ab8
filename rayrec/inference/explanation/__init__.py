"""Explanations of a model's scores: importance of features, partial dependence, and the parts of a row's score.

All of it changes columns of encoded rows and scores them again, so it holds for every model.
"""
